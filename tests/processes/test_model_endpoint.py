"""The endpoint for language models as a process, with clients and model servers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIStatusError, OpenAI

from scheduler.language_models.model_proxy.policy import INTERVAL_S, LOOKUPS, Limits
from tests.pace import LONGEST_S
from tests.processes.model_stand import ModelStand, model_stand, stats
from tests.processes.service import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow]
HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def shared_stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelStand]:
    with model_stand(tmp_path_factory.mktemp("models") / "data") as made:
        made.start_endpoint()
        yield made


@pytest.fixture
def stand(shared_stand: ModelStand) -> Iterator[ModelStand]:
    yield shared_stand
    shared_stand.reset()


def ask(stand: ModelStand, timeout_s: float = LONGEST_S, **more: object) -> httpx.Response:
    return httpx.post(
        f"{stand.url}/chat/completions",
        headers=stand.headers,
        json={**HELLO, **more},
        timeout=timeout_s,
    )


OpenAiOf = Callable[[str], OpenAI]


@pytest.fixture
def openai_of(stand: ModelStand) -> Iterator[OpenAiOf]:
    """A client with a token. A connection left open would fail whatever test runs later."""
    with ExitStack() as stack:
        yield lambda key: stack.enter_context(
            OpenAI(base_url=stand.url, api_key=key, max_retries=0)
        )


def in_flight(stand: ModelStand) -> int:
    return int(stand.column("modelinstance", "in_flight")[0])


def test_the_openai_client_works_unchanged(stand: ModelStand, openai_of: OpenAiOf) -> None:
    stand.serve("--tokens", "9")
    stand.start_endpoint()
    openai = openai_of(stand.token)

    whole = openai.chat.completions.create(**HELLO)
    pieces = list(
        openai.chat.completions.create(**HELLO, stream=True, stream_options={"include_usage": True})
    )
    plain = openai.completions.create(model="m", prompt="hello")

    assert [model.id for model in openai.models.list()] == ["m"]
    assert whole.choices[0].message.content == "the quick brown fox jumps over the lazy dog "
    text = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
    assert text == whole.choices[0].message.content
    assert pieces[-1].usage is not None
    assert pieces[-1].usage.completion_tokens == 9
    assert plain.choices[0].text == whole.choices[0].message.content
    assert openai.embeddings.create(model="m", input="x").data[0].embedding == [0.25, 0.5]


def test_curl_gets_the_events_as_they_come(stand: ModelStand) -> None:
    stand.serve("--tokens", "3")
    stand.start_endpoint()
    body = json.dumps({**HELLO, "stream": True})
    done = subprocess.run(
        ["curl", "-sN", f"{stand.url}/chat/completions", "-d", body,
         "-H", f"Authorization: Bearer {stand.token}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout.count("data: ") == 5
    assert done.stdout.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("chat/completions", {"model": "n", "messages": []}, 404, "model_not_found"),
        ("chat/completions", {"messages": []}, 400, None),
        ("chat/completions", [], 400, None),
        ("embeddings", {"model": "m", "stream": True}, 400, None),
        ("nothing", {}, 404, None),
    ],
)
def test_errors_are_sentences_in_the_shape_of_openai(
    stand: ModelStand, path: str, body: object, status: int, code: str | None
) -> None:
    stand.start_endpoint()
    answer = httpx.post(f"{stand.url}/{path}", headers=stand.headers, json=body)

    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["code"] == code
    assert error["message"].endswith(".")


def test_a_token_is_needed_and_its_scope_counts(stand: ModelStand, openai_of: OpenAiOf) -> None:
    stand.serve()
    stand.start_endpoint()
    without = httpx.post(f"{stand.url}/chat/completions", json=HELLO)
    with pytest.raises(APIStatusError) as refused:
        openai_of("gpc_wrong").models.list()
    bob = openai_of(stand.tokens["reader"])

    assert without.status_code == 401
    assert refused.value.status_code == 401
    assert [model.id for model in bob.models.list()] == ["m"]
    with pytest.raises(APIStatusError, match="lacks the scope"):
        bob.chat.completions.create(**HELLO)


def test_a_stream_says_every_while_that_the_model_boots(stand: ModelStand) -> None:
    port = stand.start_server("--tokens", "2")
    number = stand.add_instance(port, "booting", ready_in_s=85)
    stand.start_endpoint()
    becomes_ready = "UPDATE scheduler_modelinstance SET state = 'ready' WHERE id = ?"
    ready = threading.Timer(3, lambda: stand.sql(becomes_ready, number))
    ready.start()
    text = ask(stand, stream=True).text

    assert ": model boots, ready in ~8" in text
    assert text.endswith("data: [DONE]\n\n")


def test_without_an_instance_in_time_clients_are_told_when_to_come_back(stand: ModelStand) -> None:
    stand.add_instance(1, "booting", ready_in_s=85)
    stand.start_endpoint()
    headers = {**stand.headers, "Prefer": "wait=1"}
    answer = httpx.post(f"{stand.url}/chat/completions", headers=headers, json=HELLO)

    assert answer.status_code == 503
    assert 70 <= int(answer.headers["retry-after"]) <= 85
    assert "model boots, ready in ~8" in answer.json()["error"]["message"]


def test_a_request_asks_for_an_instance(stand: ModelStand) -> None:
    """Again after some time: a demand counts for a minute."""
    stand.start_endpoint()
    headers = {**stand.headers, "Prefer": "wait=1"}

    def is_wanted() -> bool:
        httpx.post(f"{stand.url}/chat/completions", headers=headers, json=HELLO)
        return stand.column("modelservice", "wanted_at") != [None]

    wait_until(is_wanted, 30, "a demand in the rows")


def test_a_server_that_accepts_no_connection_leaves_the_request_to_another_one(
    stand: ModelStand,
) -> None:
    port = stand.start_server()
    stand.add_instance(port)
    stand.serve("--tokens", "2")
    stand.start_endpoint()
    stand.end_server(port)

    assert ask(stand).json()["choices"][0]["message"]["content"] == "the quick "
    wait_until(
        lambda: stand.column("modelinstance", "failures") == [1, 0], 10, "the failure is counted"
    )


def test_a_request_that_a_server_crashed_with_is_not_sent_again(stand: ModelStand) -> None:
    stand.serve("--fault", "crash")
    other = stand.serve()
    stand.start_endpoint()
    answer = ask(stand)

    assert answer.status_code == 502
    assert "does not send it again" in answer.json()["error"]["message"]
    assert stats(other).get("begun", 0) == 0


def test_a_model_is_known_as_soon_as_it_is_in_the_rows(
    stand: ModelStand, openai_of: OpenAiOf
) -> None:
    stand.start_endpoint()
    openai = openai_of(stand.token)
    try:
        for number in range(3):
            service = stand.insert(
                "modelservice", name=f"new{number}", argv="[]", on_gpus="[]", enabled=True,
                aliases="[]", concurrency=1, max_instances=1, created_at="2026-01-01 00:00:00",
            )  # fmt: skip
            assert openai.models.retrieve(f"new{number}").id == f"new{number}"
            assert service
    finally:
        stand.sql("DELETE FROM scheduler_modelservice WHERE name != 'm'")


def test_a_server_that_fails_again_and_again_is_drained_with_its_reason(stand: ModelStand) -> None:
    stand.serve("--fault", "fail")
    stand.start_endpoint()

    codes = [ask(stand).status_code for _ in range(5)]
    wait_until(lambda: stand.column("modelinstance", "state") == ["draining"], 10, "it is drained")

    assert codes == [500] * 5
    assert stand.column("modelinstance", "reason") == [
        "5 requests in a row failed: its server answered 500."
    ]
    (event,) = stand.sql("SELECT text FROM monitor_event WHERE kind = 'MODEL_FAILED'")
    assert "5 requests in a row failed" in event[0]
    stand.sql("UPDATE scheduler_modelservice SET problem = '', retry_at = NULL, failures = 0")


def test_a_crash_within_an_answer_is_an_error_in_the_stream(stand: ModelStand) -> None:
    stand.serve("--fault", "crash_within")
    stand.serve()
    stand.start_endpoint()
    last = ask(stand, stream=True).text.strip().split("\n\n")[-1]

    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["message"].startswith("The answer broke off")


def test_the_servers_own_refusal_is_passed_on(stand: ModelStand) -> None:
    stand.serve("--fault", "refuse")
    stand.start_endpoint()
    answer = ask(stand)

    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "the prompt is too long"


def test_the_generation_ends_when_the_client_leaves(stand: ModelStand) -> None:
    port = stand.serve("--tokens", "1000", "--interval-s", "0.05")
    stand.start_endpoint()
    with httpx.stream(
        "POST", f"{stand.url}/chat/completions", headers=stand.headers,
        json={**HELLO, "stream": True},
    ) as stream:  # fmt: skip
        next(stream.iter_raw())

    wait_until(lambda: stats(port).get("left") == 1, 10, "the server sees that it has gone")
    wait_until(lambda: in_flight(stand) == 0, 10, "no request is in flight")


def test_requests_in_flight_are_in_the_rows_and_healed_after_a_kill(stand: ModelStand) -> None:
    stand.serve("--tokens", "200", "--interval-s", "0.1")
    stand.start_endpoint()
    with httpx.stream(
        "POST", f"{stand.url}/chat/completions", headers=stand.headers,
        json={**HELLO, "stream": True}, timeout=LONGEST_S,
    ) as stream:  # fmt: skip
        # The request would end with an iterator that no variable holds.
        pieces = stream.iter_raw()
        next(pieces)
        wait_until(lambda: in_flight(stand) == 1, 10, "a request is in flight")
        stand.kill_endpoint()
    stand.start_endpoint()

    wait_until(lambda: in_flight(stand) == 0, 10, "the number is corrected")


def test_the_quota_of_a_day_is_kept(stand: ModelStand) -> None:
    stand.serve("--tokens", "2")
    stand.insert("quota", user_id=2, reserved_pct=20.0, prompts=2)
    stand.restart_endpoint()

    bob = {"Authorization": f"Bearer {stand.tokens['bob']}"}
    answers = [
        httpx.post(f"{stand.url}/chat/completions", headers=bob, json=HELLO, timeout=LONGEST_S)
        for _ in range(3)
    ]

    assert [answer.status_code for answer in answers] == [200, 200, 429]


def test_a_body_that_is_too_large_is_refused(stand: ModelStand) -> None:
    stand.start_endpoint()
    answer = httpx.post(
        f"{stand.url}/completions", headers=stand.headers, content=b"x" * (17 * 1024**2)
    )

    assert answer.status_code == 413


async def test_a_user_with_many_open_requests_leaves_places_for_others(stand: ModelStand) -> None:
    stand.add_instance(1, "booting", ready_in_s=85)
    stand.start_endpoint()
    limit = Limits().requests_of_user
    bob = {"Authorization": f"Bearer {stand.tokens['bob']}", "Prefer": "wait=1"}
    async with httpx.AsyncClient(
        base_url=stand.url, timeout=LONGEST_S, limits=httpx.Limits(max_connections=None)
    ) as many:

        async def wait() -> httpx.Response:
            return await many.post("/chat/completions", headers=stand.headers, json=HELLO)

        flood = [asyncio.create_task(wait()) for _ in range(limit + 20)]
        refused, waiting = set(), set(flood)
        while len(refused) < 20:
            ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            refused |= ended
        other = await many.post("/chat/completions", headers=bob, json=HELLO)
        for one in waiting:
            one.cancel()

    assert {one.result().status_code for one in refused} == {429}
    assert len(waiting) == limit
    assert other.status_code == 503


def test_large_bodies_of_a_user_are_slowed_down_and_others_go_on(stand: ModelStand) -> None:
    stand.start_endpoint()
    large = b'{"model": "unknown", "x": "' + b"a" * (15 * 1024**2) + b'"}'
    bob = {"Authorization": f"Bearer {stand.tokens['bob']}"}
    with httpx.Client(base_url=stand.url, timeout=LONGEST_S) as http:
        answers = [
            http.post("/chat/completions", headers=stand.headers, content=large) for _ in range(12)
        ]
        other = http.post("/chat/completions", headers=bob, content=large)

    codes = [answer.status_code for answer in answers]
    assert codes[:4] == [404] * 4
    assert set(codes) == {404, 429}
    assert answers[codes.index(429)].json()["error"]["code"] == "too_many_bytes"
    assert other.status_code == 404


def test_a_flood_of_invalid_tokens_is_slowed_down_and_users_go_on(stand: ModelStand) -> None:
    stand.serve()
    stand.restart_endpoint()
    with httpx.Client(base_url=stand.url, timeout=LONGEST_S) as http:
        user = {"Authorization": f"Bearer {stand.token}"}
        assert http.get("/models", headers=user).status_code == 200
        answers = []
        began_s = time.monotonic()
        for number in range(3 * LOOKUPS):
            wrong = {"Authorization": f"Bearer gpc_wrong{number}"}
            answers.append(http.get("/models", headers=wrong))
        looked_up = [answer.status_code for answer in answers].count(401)
        most = LOOKUPS + (time.monotonic() - began_s) / INTERVAL_S + 1

        assert LOOKUPS <= looked_up <= most
        assert {answer.status_code for answer in answers} <= {401, 429}
        assert http.get("/models", headers=user).status_code == 200
        limited = [answer for answer in answers if answer.status_code == 429]
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in limited)


def test_a_slow_reader_costs_little_memory(stand: ModelStand) -> None:
    stand.serve("--tokens", "20000", "--interval-s", "0")
    stand.start_endpoint()
    assert stand.endpoint is not None
    before = _rss_mib(stand.endpoint.pid)
    with httpx.stream(
        "POST", f"{stand.url}/chat/completions", headers=stand.headers,
        json={**HELLO, "stream": True, "word_bytes": 10_000},
    ) as stream:  # fmt: skip
        pieces = stream.iter_raw(1024)
        next(pieces)
        # The server offers 200 MB meanwhile.
        time.sleep(4)
        grown = _rss_mib(stand.endpoint.pid) - before

    assert grown < 20


def _rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
