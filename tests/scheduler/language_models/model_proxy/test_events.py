"""The memory of a reader of events is bounded, whatever a model's server sends."""

from __future__ import annotations

import json

from scheduler.language_models.model_proxy.policy import LONGEST_ANSWER, LONGEST_EVENT, EventReader


def _event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


def test_an_event_without_an_end_is_an_error() -> None:
    reader = EventReader()
    for _ in range(3):
        reader.feed(b"x" * (LONGEST_EVENT // 2))

    assert reader.error == "The model's server sent an event that is too long."
    assert len(reader._rest) <= LONGEST_EVENT


def test_a_longer_answer_is_cut() -> None:
    reader = EventReader()
    for _ in range(10):
        reader.feed(_event("y" * (LONGEST_ANSWER // 8)))

    assert sum(map(len, reader.text)) == LONGEST_ANSWER


def test_events_are_read_across_pieces() -> None:
    reader, whole = EventReader(), _event("hello ") + _event("there") + b"data: [DONE]\n\n"
    for at in range(0, len(whole), 7):
        reader.feed(whole[at : at + 7])

    assert ("".join(reader.text), reader.is_done, reader.error) == ("hello there", True, "")
