"""The answer to a client when the model's answer breaks off."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from scheduler.language_models.model_proxy.api.exchange import Outlet
from scheduler.language_models.model_proxy.policy import Refused

REFUSED = Refused(502, "The answer broke off: it took too long.")


class Sent:
    def __init__(self) -> None:
        self.messages: list[MutableMapping[str, Any]] = []

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        self.messages.append(message)

    @property
    def is_complete(self) -> bool:
        return self.messages[-1].get("more_body") is False


async def test_a_stream_ends_with_an_event() -> None:
    sent = Sent()
    outlet = Outlet(sent)
    await outlet.begin(200, "text/event-stream; charset=utf-8")
    await outlet.refuse(REFUSED)

    assert b"The answer broke off" in sent.messages[1]["body"]
    assert sent.is_complete


async def test_another_answer_stays_incomplete_and_gets_no_further_bytes() -> None:
    sent = Sent()
    outlet = Outlet(sent)
    await outlet.begin(200, "application/json", content_length="50")
    await outlet.piece(b'{"choices": [')
    await outlet.refuse(REFUSED)

    assert len(sent.messages) == 2
    assert not sent.is_complete


async def test_a_refusal_before_the_answer_is_an_error_with_its_status() -> None:
    sent = Sent()
    await Outlet(sent).refuse(REFUSED)

    assert sent.messages[0]["status"] == 502
    assert sent.is_complete
