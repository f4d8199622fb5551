"""Fields of OpenAI's protocol that the endpoint reads in requests and answers."""

from __future__ import annotations

import json

import pytest

from scheduler.facts.language_models import DEFAULT_PRIORITY
from scheduler.language_models.model_proxy import policy
from scheduler.language_models.model_proxy.policy import EventReader, Refused, TokenCounter

CHAT = "chat/completions"


def event(text: str, **choice: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}, **choice}]}).encode()


def test_a_request_keeps_its_bytes_and_names_its_model() -> None:
    body = b'{"model": "small", "stream": true, "unknown": [1]}'

    request = policy.parse(CHAT, body, "5")

    assert (request.model, request.streams, request.priority) == ("small", True, 5)
    assert request.body == body


def test_a_request_without_a_priority_gets_the_default() -> None:
    assert policy.parse(CHAT, b'{"model": "small"}').priority == DEFAULT_PRIORITY


@pytest.mark.parametrize(
    ("path", "body", "priority", "param"),
    [
        (CHAT, b"{", "", None),
        (CHAT, b"[]", "", None),
        (CHAT, b"[" * 100_000, "", None),
        (CHAT, b'{"model": "small", "x": [' + b"[]," * 600_000 + b"1]}", "", None),
        (CHAT, b'{"model": 1}', "", "model"),
        (CHAT, b'{"model": "small", "stream": "yes"}', "", "stream"),
        ("embeddings", b'{"model": "small", "stream": true}', "", "stream"),
        (CHAT, b'{"model": "small"}', "6", None),
        (CHAT, b'{"model": "small"}', "high", None),
    ],
)
def test_a_malformed_request_is_refused_with_its_field(
    path: str, body: bytes, priority: str, param: str | None
) -> None:
    with pytest.raises(Refused) as caught:
        policy.parse(path, body, priority)

    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_refusal_has_the_shape_of_openai() -> None:
    refused = policy.unknown_model("large", ["small", "medium"])

    assert json.loads(policy.error_body(refused))["error"] == {
        "message": "There is no model 'large'. Models: medium, small.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


def test_tokens_are_those_that_the_server_reports_even_in_pieces() -> None:
    counter = TokenCounter(request_bytes=400)

    for piece in (b'data: {"usage": {"prompt_to', b'kens": 12, "completion_tokens": 34}}'):
        counter.feed(piece)

    assert (counter.reported(), counter.tokens()) == ((12, 34), (12, 34))


def test_tokens_that_are_not_reported_are_estimated() -> None:
    counter = TokenCounter(request_bytes=400)

    counter.feed(event("a") + b"\n\n" + event("b") + b"\n\ndata: [DONE]\n\n")

    assert (counter.reported(), counter.tokens()) == (None, (100, 2))


def test_events_are_read_across_the_borders_of_chunks() -> None:
    reader = EventReader()
    stream = event("one ") + b"\n\n" + event("two", finish_reason="stop") + b"\n\n"

    for at in range(0, len(stream), 7):
        reader.feed(stream[at : at + 7])

    assert ("".join(reader.text), reader.is_done, reader.error) == ("one two", True, "")


def test_an_error_inside_a_stream_is_read() -> None:
    reader = EventReader()

    reader.feed(b'data: {"error": {"message": "out of memory"}}\n\n')

    assert reader.error == "out of memory"


def test_an_event_that_is_no_json_object_is_an_error() -> None:
    reader = EventReader()

    reader.feed(b"data: nonsense\n\n")

    assert "no JSON object" in reader.error
