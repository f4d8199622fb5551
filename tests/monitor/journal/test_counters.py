from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from monitor.journal.facts import EvictionReason
from monitor.journal.rows import counters, events
from monitor.models import Event
from scheduler.dispatch.steps import yields
from scheduler.facts.blockers import BlockerCode
from tests.builders import NOW

pytestmark = pytest.mark.django_db


def counts(name: str) -> dict[tuple[str, str], float]:
    return {(row.host, row.subject): row.value for row in counters.of(name)}


def test_it_counts_by_subject(settings: Any) -> None:
    for subject in ("one", "other", "one"):
        counters.add("things", subject)
    counters.add("things", "one", by=2.5)

    node = settings.CONFIG.node
    assert counts("things") == {(node, "one"): 4.5, (node, "other"): 1}


def test_each_name_has_counts_of_its_own() -> None:
    counters.add("things", "one")

    assert counts("others") == {}


def test_a_count_stays_when_the_rows_go(settings: Any) -> None:
    events.add("GPU_LOST", "", now=NOW - timedelta(days=100))
    Event.objects.all().delete()

    assert counts(counters.EVENTS) == {(settings.CONFIG.node, "GPU_LOST"): 1}


@pytest.mark.parametrize(
    "code",
    [
        BlockerCode.OWNER_PRESENT,
        BlockerCode.BATCH_EXCLUSIVE,
        yields.THROTTLED_CODE,
        yields.LOST_CODE,
        "Requeued",
        "WindowEnds",
    ],
)
def test_each_code_of_a_request_to_leave_has_a_reason_of_its_own(code: str) -> None:
    assert EvictionReason.of_code(code).replace("_", "") == code.lower()


def test_an_unknown_code_is_another_reason() -> None:
    assert EvictionReason.of_code("Unheard") is EvictionReason.OTHER
