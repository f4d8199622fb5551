from __future__ import annotations

import logging

import pytest

from monitor.pages.hub import Closed, MessageBudget, OpenSockets, PageMessage, page_message
from monitor.runtime.rows.item_isolation import FaultLog
from tests.sockets import MALFORMED_TEXTS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"ack": 7}', PageMessage(ack=7)),
        ('{"whole": true}', PageMessage(whole=True)),
        ("{}", PageMessage()),
    ],
)
def test_a_message_of_a_page_is_read(text: str, message: PageMessage) -> None:
    assert page_message(text) == message


@pytest.mark.parametrize("text", [*MALFORMED_TEXTS, "", None])
def test_any_other_message_is_malformed(text: str | None) -> None:
    with pytest.raises(Closed):
        page_message(text)


def test_the_budget_allows_a_burst_and_then_a_rate() -> None:
    budget = MessageBudget(10, 5.0, now=0.0)

    assert [budget.spend(0.0) for _ in range(11)] == [True] * 10 + [False]


def test_the_budget_refills_and_never_beyond_the_burst() -> None:
    budget = MessageBudget(10, 5.0, now=0.0)
    for _ in range(10):
        budget.spend(0.0)

    assert [budget.spend(1.0) for _ in range(6)] == [True] * 5 + [False]
    assert [budget.spend(1000.0) for _ in range(11)] == [True] * 10 + [False]


def test_a_user_who_closes_a_socket_may_open_another() -> None:
    sockets = OpenSockets(1)
    with sockets.one_more("alice") as first, sockets.one_more("alice") as second:
        assert (first, second) == (True, False)
    with sockets.one_more("alice") as again, sockets.one_more("bob") as other:
        assert (again, other) == (True, True)


def test_a_lasting_fault_is_logged_once_in_its_interval(caplog: pytest.LogCaptureFixture) -> None:
    faults = FaultLog(logging.getLogger("test"))
    for _ in range(3):
        for kind in (ValueError, KeyError):
            try:
                raise kind("x")
            except Exception as error:
                faults.log(error, "It failed", {"kind": "LIVE_HUB_FAULT"})

    assert len(caplog.records) == 2


def test_a_fault_that_lasts_is_logged_again_later(caplog: pytest.LogCaptureFixture) -> None:
    faults = FaultLog(logging.getLogger("test"), repeat_s=0.0)
    for _ in range(2):
        faults.log(ValueError("x"), "It failed", {"kind": "LIVE_HUB_FAULT"})

    assert len(caplog.records) == 2
