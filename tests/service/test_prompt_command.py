from __future__ import annotations

from typing import Any

import pytest

from gpucoord_site.cli import connection, verbs

ROW = {"id": 7, "status": "queued", "waits_for": "model boots, ready in ~85 s, position 1"}


class FakeClient:
    """Answers with these states of the prompt, one after another."""

    def __init__(self, *states: dict[str, Any]) -> None:
        self._states = [ROW | state for state in states]
        self.sent: dict[str, Any] = {}

    def send_prompt(self, new: dict[str, Any]) -> dict[str, Any]:
        self.sent = new
        return ROW

    def prompt(self, _: int) -> dict[str, Any]:
        return self._states.pop(0)


def run(monkeypatch: pytest.MonkeyPatch, client: FakeClient, *words: str) -> int:
    monkeypatch.setattr(connection, "run", lambda _, work: work(client))
    monkeypatch.setattr(verbs, "SHORTEST_PAUSE_S", 0.0)
    return verbs.prompt(["small", *words])


def test_it_prints_the_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FakeClient({"status": "complete", "result": "two\nlines"})

    assert run(monkeypatch, client, "hello", "there", "--type", "parse") == 0
    assert client.sent == {
        "model": "small", "type": "parse", "priority": 3, "prompt": "hello there"
    }  # fmt: skip
    said = capsys.readouterr()
    assert said.out == "two\nlines\n"
    assert said.err == "gpucoord: prompt 7 waits: model boots, ready in ~85 s, position 1\n"


def test_a_failed_prompt_is_an_error_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FakeClient({"status": "failed", "error": "Cancelled by ada.", "result": ""})

    assert run(monkeypatch, client, "hello") == 1
    assert "prompt 7 failed: Cancelled by ada." in capsys.readouterr().err


def test_without_waiting_it_prints_the_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, FakeClient(), "hello", "--no-wait") == 0
    assert capsys.readouterr().out == "prompt 7\n"
