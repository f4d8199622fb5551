"""An answer that is not one of gpucoord ends a command with a sentence, never with a traceback."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from gpucoord_site.cli import connection
from gpucoord_site.cli.client import Answer, Client
from gpucoord_site.cli.main import COMMANDS, _dispatch

ANSWERS = [b"[]", b"[1]", b"7", b"null", b"{}", b"<html>", b"", b'{"jobs": 7}', b'{"jobs": [7]}',
           b'{"jobs": [{"id": "x"}], "id": "x", "gpus": 7, "hosts": [1], "processes": {}}',
           b'{"a":' * 100_000]  # fmt: skip
TYPED = ["queue", "history", "show 1", "wait 1", "hold 1", "change 1 --time 5min", "why 1", "mine",
         "efficiency 1", "quota", "gpus", "logs 1", "cancel 1", "requeue 1", "models",
         "prompt m hello", "report --tag x", "submit -d -- true", "run true"]  # fmt: skip


class Stranger:
    """Answers every request in the same way."""

    url = "http://127.0.0.1:8000"
    headers: dict[str, str] = {}

    def __init__(self, status: int, content: bytes) -> None:
        self._answer = Answer(status, {}, content)

    def request(self, *_: Any, **__: Any) -> Answer:
        return self._answer

    def close(self) -> None:
        pass


def ask(monkeypatch: pytest.MonkeyPatch, command: str, status: int, content: bytes) -> int:
    def connect(_options: Namespace, _timeout_s: float = 30.0) -> Client:
        client = Client(Stranger.url, "unused")
        client._http = Stranger(status, content)  # type: ignore[assignment]
        return client

    monkeypatch.setattr(connection, "connect", connect)
    monkeypatch.setattr("gpucoord_site.cli.client.pause", lambda _: None)
    name, *rest = command.split()
    return _dispatch(name, rest, COMMANDS)


@pytest.mark.parametrize("command", TYPED)
def test_a_strange_answer_is_a_sentence(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for content in ANSWERS:
        code = ask(monkeypatch, command, 200, content)
        said = capsys.readouterr().err
        assert code == 0 or (code in (1, 125) and said.startswith("gpucoord: ")), (content, said)


@pytest.mark.parametrize("content", [*ANSWERS, b'{"detail": "no", "errors": [7]}'])
def test_so_is_a_strange_refusal(
    content: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(monkeypatch, "queue", 404, content) == 125
    assert capsys.readouterr().err.startswith("gpucoord: ")


@pytest.mark.parametrize("content", [b"[]", b"<html>"])
def test_the_address_that_answered_is_named(
    content: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(monkeypatch, "queue", 200, content) == 125
    said = capsys.readouterr().err
    assert (
        said == "gpucoord: http://127.0.0.1:8000 answered /api/jobs/, but not as gpucoord does.\n"
    )
