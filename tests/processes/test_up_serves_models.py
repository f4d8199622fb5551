"""`gpucoord up` with a model service: it starts the model, the endpoint, and ends both again."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.pace import LONGEST_S
from tests.processes import llama_server
from tests.processes.model_stand import SERVER
from tests.processes.service import Service, lives, token, wait_until

pytestmark = pytest.mark.processes
COMMAND = [sys.executable, str(SERVER), "--model", "{model}", "--port", "{port}", "--tokens", "3"]
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]


class Client:
    """REST calls of an administrator."""

    def __init__(self, service: Service) -> None:
        self.service, self.token = service, token(service)
        headers = {"Authorization": f"Bearer {self.token}"}
        self._http = httpx.Client(headers=headers, timeout=LONGEST_S)
        self._http.base_url = f"{service.address}api/"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str) -> Any:
        return self._http.get(path).raise_for_status().json()

    def post(self, path: str, **values: object) -> Any:
        return self._http.post(path, json=values).raise_for_status().json()

    def delete(self, path: str) -> None:
        self._http.delete(path).raise_for_status()

    def base_url(self) -> str:
        def address() -> str | None:
            found: str | None = self.get("models/")["base_url"]
            return found

        return wait_until(address, 15, "an endpoint for models")

    def restart(self) -> None:
        self.service.start()
        self._http.base_url = f"{self.service.address}api/"

    def remove_all(self) -> None:
        """Remove the model; returns when its process has ended."""
        models = self.get("models/")["models"]
        pids = [one["pid"] for model in models for one in model["instances"]]
        for model in models:
            self.delete(f"models/{model['name']}/")
        wait_until(lambda: not any(pid and lives(pid) for pid in pids), 30, "the model has ended")

    def says(self) -> str | None:
        """The answer of the model, by the client of OpenAI."""
        with OpenAI(base_url=self.base_url(), api_key=self.token, timeout=LONGEST_S) as openai:
            chat = openai.chat.completions.create(model="m", messages=MESSAGES)
        return chat.choices[0].message.content


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with Service(tmp_path / "data") as service:
        wait_until(lambda: service.healthz().status_code == 200, 15, "a healthy service")
        with Client(service) as client:
            yield client
            # Instances outlive gpucoord.
            client.remove_all()


def add_service(client: Client, **values: object) -> None:
    account = pwd.getpwuid(os.geteuid()).pw_name
    client.post("models/", name="m", command=COMMAND, gpus=0, account=account, **values)


def test_a_service_made_by_rest_answers_at_the_endpoint(client: Client) -> None:
    assert client.get("models/")["base_url"] is None
    add_service(client)

    assert client.says() == "the quick brown "

    (instance,) = client.get("models/m/")["instances"]
    assert instance["state"] == "ready"
    # Prompts are answered by the same process and the same instance.
    prompt = client.post("prompts/", model="m", type="parse", prompt="hello")
    answered = wait_until(
        lambda: (row := client.get(f"prompts/{prompt['id']}/"))["status"] == "complete" and row,
        15,
        "an answer",
    )
    assert (answered["result"], answered["instance"]) == ("the quick brown ", instance["id"])
    # Without a service, there is no endpoint and no process of the model.
    endpoint = client.service.child("models")
    client.remove_all()
    wait_until(lambda: not lives(endpoint), 15, "the endpoint has ended")
    wait_until(lambda: client.get("models/")["base_url"] is None, 15, "no address")
    job = f"jobs/{instance['job']}/"
    wait_until(lambda: client.get(job)["state"] == "finished", 15, "its job has ended")


@pytest.mark.llama
def test_the_server_of_llama_cpp_is_booted_and_answers_the_client_of_openai(
    client: Client, tmp_path: Path
) -> None:
    model = tmp_path / "tiny.gguf"
    llama_server.write_model(model)
    program = [sys.executable, llama_server.__file__, "--model", str(model)]
    account = pwd.getpwuid(os.geteuid()).pw_name
    command = [*program, "--alias", "{model}", "--port", "{port}"]
    client.post("models/", name="m", command=command, gpus=0, account=account)

    with OpenAI(base_url=client.base_url(), api_key=client.token, timeout=LONGEST_S) as openai:
        names = [one.id for one in openai.models.list()]
        stream = openai.chat.completions.create(
            model="m", messages=MESSAGES, max_tokens=20, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        *_, last = stream
        whole = openai.chat.completions.create(model="m", messages=MESSAGES, max_tokens=5)

    assert names == ["m"]
    assert last.usage is not None
    assert last.usage.completion_tokens <= 20
    assert whole.usage is not None
    assert whole.usage.completion_tokens <= 5
    tokens = last.usage.completion_tokens + whole.usage.completion_tokens
    wait_until(
        lambda: client.get("models/m/")["use"]["completion_tokens"] == tokens, 15, "the tokens"
    )


def test_a_taken_port_is_shown_and_prompts_are_answered_until_it_is_free(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] - 1
        service = Service(tmp_path / "data").start("--port", str(port))
        try:
            with Client(service) as client:
                add_service(client)
                text = f"Port {port + 1} on 127.0.0.1 is taken. Choose another with models_port."
                wait_until(lambda: text in service.text(), 15, "the reason in the log")
                models = client.get("models/")
                assert models["base_url"] is None
                assert text in models["endpoint_problem"]
                assert kinds(client) == ["LISTENER_UNUSABLE"]
                assert listeners(service) == {"web": "", "models": models["endpoint_problem"]}
                assert answer(client) == "the quick brown "
                taken.close()
                assert client.base_url() == f"http://127.0.0.1:{port + 1}/v1"
                wait_until(lambda: kinds(client) == ["LISTENER_USABLE", "LISTENER_UNUSABLE"], 15,
                           "the event of its end")  # fmt: skip
                assert listeners(service) == {"web": "", "models": ""}
                assert client.get("models/")["endpoint_problem"] == ""
                with OpenAI(base_url=client.base_url(), api_key=client.token) as openai:
                    assert [model.id for model in openai.models.list()] == ["m"]
                assert answer(client) == "the quick brown "
                client.remove_all()
        finally:
            service.stop()


def answer(client: Client) -> str:
    prompt = client.post("prompts/", model="m", type="parse", prompt="hello")
    done = wait_until(
        lambda: (row := client.get(f"prompts/{prompt['id']}/"))["finished_at"] and row,
        20,
        "an answer",
    )
    return str(done["result"])


def kinds(client: Client) -> list[str]:
    """Of the events of listeners, the newest first."""
    events = client.get("events/")["events"]
    return [event["kind"] for event in events if event["kind"].startswith("LISTENER")]


def listeners(service: Service) -> dict[str, str]:
    """By name the problem, but for logins, which other services of these tests may disturb."""
    return {each.name: each.problem for each in service.state().listeners if each.name != "login"}


def test_a_restart_keeps_the_instance_and_a_kill_starts_the_endpoint_again(
    client: Client,
) -> None:
    add_service(client)
    client.says()
    (instance,) = client.get("models/m/")["instances"]

    client.service.process.terminate()
    client.service.process.wait(LONGEST_S)
    assert lives(instance["pid"])
    client.restart()

    assert client.says() == "the quick brown "
    assert [one["pid"] for one in client.get("models/m/")["instances"]] == [instance["pid"]]
    first = client.service.child("models")
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: client.service.child("models") not in (0, first), 20, "another")
    assert client.says() == "the quick brown "
