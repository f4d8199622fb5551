from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.incidents.policy.patterns import (
    PatternPolicy,
    Subject,
    UsagePattern,
    find,
    runs,
    sentence,
)
from monitor.incidents.rows import patterns as rows
from monitor.models import Pattern
from monitor.snapshot import rows as snapshots
from tests.builders import gpu, gpu_uuid, host, snapshot

BERLIN = ZoneInfo("Europe/Berlin")
ALICE = Subject(gpu_uuid(1), "alice", "python")
# A Monday.
NOW = datetime(2026, 3, 16, 11, 30, tzinfo=UTC)


def hours(days: int, until: datetime = NOW) -> list[int]:
    end = int(until.timestamp()) // 3600 * 3600
    return [end - 3600 * n for n in range(1, days * 24 + 1)]


def looked(
    busy: Callable[[datetime], bool],
    days: int,
    until: datetime = NOW,
    zone: ZoneInfo = BERLIN,
    watched: Callable[[datetime], bool] = lambda local: True,
) -> list[UsagePattern]:
    """The patterns of a GPU that is busy whenever `busy` says so of the local time."""
    local = {t: datetime.fromtimestamp(t, zone) for t in hours(days, until)}
    used = {t: 95.0 for t, when in local.items() if busy(when) and watched(when)}
    seen = [t for t, when in local.items() if watched(when)]
    return find({ALICE: used}, seen, zone, until, PatternPolicy())


def at_night(local: datetime) -> bool:
    return local.hour >= 20 or local.hour < 6


def told(found: list[UsagePattern]) -> list[str]:
    return [sentence(pattern, "GPU 1") for pattern in found]


def test_every_night_but_one() -> None:
    away = date(2026, 3, 11)

    def nights(local: datetime) -> bool:
        return at_night(local) and (local - timedelta(hours=12)).date() != away

    found = looked(nights, days=10, until=NOW.replace(hour=8))
    assert told(found) == [
        "python (alice) monopolises GPU 1 every night 20:00–06:00 (9 of the last 10 nights)"
    ]
    assert found[0].mean_pct == 95


def test_every_day_at_lunch() -> None:
    assert told(looked(lambda local: 12 <= local.hour < 15, days=14)) == [
        "python (alice) monopolises GPU 1 every day 12:00–15:00 (14 of the last 14 days)"
    ]


def test_only_on_workdays() -> None:
    found = looked(lambda local: local.weekday() < 5 and 9 <= local.hour < 17, days=21)
    assert told(found) == [
        "python (alice) monopolises GPU 1 on workdays 09:00–17:00 (14 of the last 14 workdays)"
    ]


def test_one_evening_each_week() -> None:
    found = looked(lambda local: local.weekday() == 2 and 18 <= local.hour < 23, days=56)
    assert told(found) == [
        "python (alice) monopolises GPU 1 every Wednesday 18:00–23:00 (8 of the last 8 Wednesdays)"
    ]


@pytest.mark.parametrize(
    ("when", "change"),
    [("spring", datetime(2026, 3, 29, tzinfo=UTC)), ("autumn", datetime(2026, 10, 25, tzinfo=UTC))],
)
def test_the_nights_in_which_clocks_change_are_nights_like_others(
    when: str, change: datetime
) -> None:
    found = looked(at_night, days=10, until=change + timedelta(days=4, hours=8))
    assert [(p.start, p.end, p.hits, p.chances) for p in found] == [(20, 6, 10, 10)]


@pytest.mark.parametrize("zone", ["Pacific/Auckland", "America/St_Johns", "Asia/Kathmandu"])
def test_times_are_those_of_the_place(zone: str) -> None:
    found = looked(lambda local: 12 <= local.hour < 16, days=14, zone=ZoneInfo(zone))
    assert [(p.start, p.end) for p in found] == [(12, 16)]


def test_unwatched_days_are_not_missed_chances() -> None:
    half = looked(at_night, days=14, watched=lambda local: local.day > 8)
    assert half[0].hits == half[0].chances < 10


@pytest.mark.parametrize(
    "busy",
    [
        lambda local: False,
        lambda local: True,
        lambda local: local.day % 3 == 0 and at_night(local),
        lambda local: local.hour == 4,
        lambda local: local.day in (14, 15) and at_night(local),
    ],
    ids=["never", "always", "each third night", "a single hour", "twice"],
)
def test_what_is_rare_short_or_always_is_no_pattern(busy: Callable[[datetime], bool]) -> None:
    assert looked(busy, days=14) == []


def test_it_can_be_switched_off() -> None:
    off = PatternPolicy(enabled=False)
    assert find({ALICE: dict.fromkeys(hours(14), 99.0)}, hours(14), BERLIN, NOW, off) == []


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, 23)))
def test_stretches_hold_each_hour_once(hot: set[int]) -> None:
    inside: list[int] = []
    for start, end in runs(hot):
        length = (end - start) % 24 or 24
        inside += [(start + n) % 24 for n in range(length)]
    assert sorted(inside) == sorted(hot)


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(0, 13 * 24)), st.sampled_from(["UTC", "Europe/Berlin"]))
def test_nothing_is_seen_more_often_than_looked(at: set[int], zone: str) -> None:
    all_hours = hours(14)
    used = {all_hours[n]: 90.0 for n in at}
    for pattern in find({ALICE: used}, all_hours, ZoneInfo(zone), NOW, PatternPolicy()):
        assert 4 <= pattern.hits <= pattern.chances <= 14
        assert pattern.hits >= 0.75 * pattern.chances


@pytest.mark.django_db
def test_a_subject_that_fails_keeps_no_other_from_its_pattern(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshots.record(snapshot([gpu(1)]))
    used = {t: 95.0 for t in hours(14) if at_night(datetime.fromtimestamp(t, BERLIN))}
    subjects = {Subject(gpu_uuid(1), name, "python"): used for name in ("alice", "bob", "carol")}
    monkeypatch.setattr(rows, "_history", lambda host, now: (subjects, set(hours(14))))
    of_subject = rows.of_subject

    def odd(subject: Subject, *others: Any) -> list[UsagePattern]:
        if subject.user == "bob":
            raise ValueError("odd")
        return of_subject(subject, *others)

    monkeypatch.setattr(rows, "of_subject", odd)
    assert rows.replace_all(BERLIN, NOW) == 2
    assert set(Pattern.objects.values_list("user", flat=True)) == {"alice", "carol"}


@pytest.mark.django_db
def test_a_host_that_fails_keeps_its_patterns_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("box1", "box2"):
        snapshots.record(snapshot([gpu(1, uuid=f"GPU-{name}")], host=host(name=name)))
    used = {t: 95.0 for t in hours(14) if at_night(datetime.fromtimestamp(t, BERLIN))}

    def history(name: str, now: datetime) -> tuple[Any, set[int]]:
        return {Subject(f"GPU-{name}", "alice", "python"): used}, set(hours(14))

    monkeypatch.setattr(rows, "_history", history)
    assert rows.replace_all(BERLIN, NOW) == 2

    def odd(name: str, now: datetime) -> tuple[Any, set[int]]:
        if name == "box1":
            raise ValueError("odd")
        return {}, set(hours(14))

    monkeypatch.setattr(rows, "_history", odd)
    assert rows.replace_all(BERLIN, NOW + timedelta(hours=1)) == 0
    assert set(Pattern.objects.values_list("host", flat=True)) == {"box1"}
