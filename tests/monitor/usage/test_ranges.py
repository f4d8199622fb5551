from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.usage.policy.ranges import (
    LONGEST_S,
    MOST_POINTS,
    RANGES,
    SHORTEST_S,
    STEPS,
    HistoryRange,
    HistoryWindow,
    Source,
    window,
)

NOW = datetime(2026, 3, 2, 12, 0, 7, tzinfo=UTC)
T = int(NOW.timestamp())
KEPT = HistoryRange(raw_s=7200, minutes_s=90 * 86400)
times = st.integers(631_152_000, 2_208_988_800).map(
    lambda t: datetime.fromtimestamp(t, UTC).isoformat()
)


def asked(kept: HistoryRange = KEPT, **query: str) -> HistoryWindow:
    return window(query, NOW, kept, UTC)


@pytest.mark.parametrize(
    ("name", "source", "step"),
    [
        ("10min", Source.RAW, 2),
        ("1h", Source.RAW, 10),
        ("24h", Source.MINUTE, 300),
        ("7d", Source.HOUR, 3600),
        ("30d", Source.HOUR, 7200),
    ],
)
def test_longer_ranges_come_from_coarser_rows(name: str, source: Source, step: int) -> None:
    found = asked(range=name)

    assert (found.source, found.step) == (source, step)
    assert found.until == T
    assert 0 <= found.seconds - RANGES[name][1] < step
    assert found.live


def test_deleted_rows_are_not_queried() -> None:
    assert asked(HistoryRange(raw_s=600, minutes_s=86400), range="1h").source is Source.MINUTE
    old = asked(since="2025-03-02T10:00", until="2025-03-02T11:00")
    assert (old.source, old.step) == (Source.HOUR, 3600)


def test_a_time_without_a_zone_is_the_servers() -> None:
    query = {"since": "2026-03-01T10:00", "until": "2026-03-01T12:00"}
    found = window(query, NOW, KEPT, timezone(timedelta(hours=2)))

    assert found.since == datetime(2026, 3, 1, 8, tzinfo=UTC).timestamp()
    assert not found.live
    assert found.refresh_s is None


def test_the_order_of_both_ends_does_not_matter() -> None:
    one, other = "2026-03-01T10:00Z", "2026-03-01T12:00Z"

    assert asked(since=one, until=other) == asked(since=other, until=one)


@pytest.mark.parametrize(
    "query", [{"range": "9y"}, {"since": "soon"}, {"range": "custom"}, {"since": "9999999"}, {}]
)
def test_nonsense_means_the_default(query: dict[str, str]) -> None:
    assert asked(**query).name == "1h"


@given(times, st.none() | times, st.sampled_from([KEPT, HistoryRange(60, 86400)]))
def test_any_window_is_drawable(since: str, until: str | None, kept: HistoryRange) -> None:
    query = {"since": since} | ({"until": until} if until else {})
    found = window(query, NOW, kept, UTC)

    assert found.since < found.until <= T
    assert SHORTEST_S <= found.seconds <= LONGEST_S + found.step
    assert found.step in STEPS[found.source]
    assert found.since % found.step == 0
    assert found.seconds / found.step <= MOST_POINTS + 1


@given(times, times)
def test_processes_are_shown_by_the_minute_at_best(since: str, until: str) -> None:
    found = asked(since=since, until=until).in_minutes

    assert found.source is not Source.RAW
    assert found.step >= 60
