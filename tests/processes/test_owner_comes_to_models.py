"""The user of a GPU returns on a desktop: models leave, and what they were answering goes on."""

from __future__ import annotations

import json
import os
import pwd
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.pace import LONGEST_S, Stopwatch
from tests.processes.model_stand import SERVER
from tests.processes.service import Service, lives, token, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow]
TOKENS, INTERVAL_S = 100, 0.1


class Models:
    """A desktop with models; `visitor`: the file that lets the user of GPU 0 come."""

    def __init__(self, service: Service, visitor: Path) -> None:
        self.service, self.visitor = service, visitor
        headers = {"Authorization": f"Bearer {token(service)}"}
        self.http = httpx.Client(headers=headers, timeout=LONGEST_S)
        self.http.base_url = f"{service.address}api/"

    def get(self, path: str) -> Any:
        return self.http.get(path).raise_for_status().json()

    def post(self, path: str, **values: object) -> Any:
        return self.http.post(path, json=values).raise_for_status().json()

    def add(self, name: str, *options: str, **values: object) -> None:
        account = pwd.getpwuid(os.geteuid()).pw_name
        command = [sys.executable, str(SERVER), "--port", "{port}", *options]
        self.post(
            "models/", name=name, command=command, account=account, gpu_memory="20GiB", **values
        )

    def instances(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(f"models/{name}/")["instances"]
        return found

    def ready(self, name: str, count: int) -> list[dict[str, Any]]:
        def all_ready() -> list[dict[str, Any]] | None:
            found = [one for one in self.instances(name) if one["state"] == "ready"]
            return found if len(found) == count else None

        return wait_until(all_ready, 30, f"{count} ready instances of {name}")

    def in_flight(self) -> int:
        return sum(one["in_flight"] for name in ("both", "there") for one in self.instances(name))

    def prompt(self, model: str) -> int:
        parameters = {"tokens": TOKENS, "interval_s": INTERVAL_S}
        sent = self.post("prompts/", model=model, prompt="hello", parameters=parameters)
        return int(sent["id"])

    def stream(self, model: str, into: list[str]) -> threading.Thread:
        """Read a stream of the endpoint in a thread; its lines."""
        url = wait_until(lambda: self.get("models/")["base_url"], 30, "the endpoint for models")
        body = {
            "model": model, "messages": [{"role": "user", "content": "hello"}], "stream": True,
            "tokens": 1000, "interval_s": INTERVAL_S,
        }  # fmt: skip

        def read() -> None:
            with httpx.stream(
                "POST", f"{url}/chat/completions", json=body, headers=self.http.headers,
                timeout=LONGEST_S,
            ) as answer:  # fmt: skip
                into.extend(line for line in answer.iter_lines() if line)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return thread

    def remove_all(self) -> None:
        """Instances outlive gpucoord, so they are removed first."""
        models = [one["name"] for one in self.get("models/")["models"]]
        pids = [one["pid"] for name in models for one in self.instances(name)]
        for name in models:
            self.http.delete(f"models/{name}/").raise_for_status()
        wait_until(lambda: not any(pid and lives(pid) for pid in pids), 30, "models have ended")


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Models]:
    visitor = tmp_path / "visitor"
    with Service(
        tmp_path / "data", "tests.processes.visitor_settings", GPUCOORD_PROFILE="desktop",
        GPUCOORD_SIMULATED_GPUS="2", VISITOR_FILE=str(visitor),
    ) as service:  # fmt: skip
        wait_until(lambda: service.healthz().status_code == 200, 15, "a healthy service")
        made = Models(service, visitor)
        yield made
        made.remove_all()
        made.http.close()


def test_all_models_leave_within_six_seconds_and_requests_are_retried_or_fail(
    models: Models,
) -> None:
    # The processes of the first model do not end before they are killed.
    models.add("both", "--stays", on_gpus=["0", "1"], min_instances=2, max_instances=2)
    models.add("there", on_gpus=["0"], min_instances=1)
    ready = models.ready("both", 2) + models.ready("there", 1)
    on_gpu = [one["pid"] for one in ready if one["gpu"] == 0]
    (elsewhere,) = [one for one in ready if one["gpu"] != 0]
    assert (len(on_gpu), elsewhere["gpu"]) == (2, 1)
    prompts = [models.prompt("both") for _ in range(2)]
    lines: list[str] = []
    reader = models.stream("there", lines)
    wait_until(lambda: models.in_flight() == 3, 30, "three requests in flight")

    models.visitor.touch()
    watch = Stopwatch()
    wait_until(lambda: not any(map(lives, on_gpu)), 30, "the models have left GPU 0")
    left_s = watch.seconds

    assert left_s <= 6
    assert lives(elsewhere["pid"])
    # A stream that has begun can't be answered by another instance.
    reader.join(LONGEST_S)
    error = json.loads(lines[-1].removeprefix("data: "))["error"]
    assert error["message"].startswith("The answer broke off")

    def answers() -> list[dict[str, Any]] | None:
        found = [models.get(f"prompts/{number}/") for number in prompts]
        return found if all(one["status"] == "complete" for one in found) else None

    answered = wait_until(answers, 40, "all prompts are answered")
    assert {one["instance"] for one in answered} == {elsewhere["id"]}
    assert sorted(one["attempt"] for one in answered) == [1, 2]
    assert all(len(one["result"].split()) == TOKENS for one in answered)
    events = models.get("events/?kind=MODEL_EVICTED")["events"]
    assert len(events) == 2
    assert all("needs GPU 0" in event["text"] for event in events)
