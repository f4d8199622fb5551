from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.gpus.rows import snapshot as snapshots
from monitor.incidents import step as rows
from monitor.incidents.policy.patterns import (
    Place,
    UsagePattern,
    find,
    sentence,
    tail,
)
from monitor.models import Pattern, PolicyValues
from tests.builders import gpu, gpu_uuid, host, snapshot

BERLIN = ZoneInfo("Europe/Berlin")
PYTHON = Place(gpu_uuid(1), "python")
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
    used = {t: {PYTHON: 95.0} for t, when in local.items() if busy(when) and watched(when)}
    seen = [t for t, when in local.items() if watched(when)]
    return find({"alice": used}, seen, zone, until)


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


NIGHT_SHARE = st.floats(55, 95)


@pytest.mark.parametrize(
    ("nights", "words"),
    [
        ((4,), "every Friday 20:00–06:00 (8 of the last 8 Fridays)"),
        ((5,), "every Saturday 20:00–06:00 (8 of the last 8 Saturdays)"),
        ((0, 2, 4), "every Monday, Wednesday and Friday 20:00–06:00 (24 of the last 24 nights)"),
        (
            (6, 0, 1, 2, 3),
            "every Sunday, Monday, Tuesday, Wednesday and Thursday 20:00–06:00"
            " (40 of the last 40 nights)",
        ),
        ((4, 5), "every Friday and Saturday 20:00–06:00 (16 of the last 16 nights)"),
    ],
    ids=["Friday", "Saturday", "each second", "before workdays", "before free days"],
)
def test_a_night_counts_for_the_day_on_which_it_begins(nights: tuple[int, ...], words: str) -> None:
    def on_nights(local: datetime) -> bool:
        return at_night(local) and (local - timedelta(hours=12)).weekday() in nights

    assert told(looked(on_nights, days=57)) == [f"python (alice) monopolises GPU 1 {words}"]


def test_a_lunch_and_a_night_are_two_patterns() -> None:
    def both(local: datetime) -> bool:
        return at_night(local) or 12 <= local.hour < 14

    assert sorted((p.start, p.end, p.days) for p in looked(both, days=15)) == [
        (12, 14, (0, 1, 2, 3, 4, 5, 6)),
        (20, 6, (0, 1, 2, 3, 4, 5, 6)),
    ]


def night_of(share: Callable[[int, datetime], dict[Place, float]]) -> list[UsagePattern]:
    """The patterns of alice, who uses `share` in each hour of her nights."""
    used = {
        t: share(t, local)
        for t in hours(15)
        if at_night(local := datetime.fromtimestamp(t, BERLIN))
    }
    return find({"alice": used}, hours(15), BERLIN, NOW)


@settings(max_examples=20, deadline=None)
@given(st.lists(NIGHT_SHARE, min_size=150, max_size=150))
def test_use_near_the_threshold_does_not_break_a_night(shares: list[float]) -> None:
    mean = sum(shares) / len(shares)
    even = [share + 75 - mean for share in shares]
    found = night_of(lambda t, local: {PYTHON: even[t // 3600 % 150]})
    assert [(p.start, p.end) for p in found] in ([(20, 6)], [])


def test_two_programs_of_a_person_are_one_pattern() -> None:
    found = night_of(lambda t, local: {PYTHON: 48.0, Place(gpu_uuid(1), "train"): 46.0})
    assert told(found) == [
        "python and 1 more (alice) monopolises GPU 1 every night 20:00–06:00"
        " (14 of the last 14 nights)"
    ]
    assert found[0].mean_pct == pytest.approx(94)


def test_gpus_that_a_person_uses_in_turn_are_one_pattern() -> None:
    def other_night(t: int, local: datetime) -> dict[Place, float]:
        return {Place(gpu_uuid((local - timedelta(hours=12)).day % 2), "python"): 95.0}

    (found,) = night_of(other_night)
    assert sorted(found.gpu_uuids) == [gpu_uuid(0), gpu_uuid(1)]
    assert sentence(found, "GPUs 0 and 1") == (
        "python (alice) uses GPUs 0 and 1 (95 % of one GPU) every night 20:00–06:00"
        " (14 of the last 14 nights)"
    )


@given(st.integers(1, 30), st.floats(0.01, 0.99))
def test_the_binomial_tail_is_a_probability_that_falls_with_the_hits(n: int, p: float) -> None:
    tails = [tail(hits, n, p) for hits in range(n + 1)]
    assert tails[0] == pytest.approx(1)
    assert tails[n] == pytest.approx(p**n)
    assert tails == sorted(tails, reverse=True)


def test_use_around_the_clock_for_days_is_no_habit_of_nights() -> None:
    assert looked(lambda local: local.day % 14 > 1 or 6 <= local.hour < 18, days=15) == []


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(0, 13 * 24)), st.sampled_from(["UTC", "Europe/Berlin"]))
def test_nothing_is_seen_more_often_than_looked(at: set[int], zone: str) -> None:
    all_hours = hours(14)
    used = {all_hours[n]: {PYTHON: 90.0} for n in at}
    for pattern in find({"alice": used}, all_hours, ZoneInfo(zone), NOW):
        assert 4 <= pattern.hits <= pattern.chances <= 14
        assert pattern.hits >= 0.75 * pattern.chances


@pytest.mark.django_db
def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots.record(snapshot([gpu(1)]))
    used = {t: {PYTHON: 95.0} for t in hours(14) if at_night(datetime.fromtimestamp(t, BERLIN))}
    monkeypatch.setattr(rows, "_history", lambda host, now: ({"alice": used}, set(hours(14))))
    assert rows.replace_patterns(BERLIN, NOW) == 1

    PolicyValues.objects.create(name="patterns", values={"enabled": False})

    assert rows.replace_patterns(BERLIN, NOW) == 0


@pytest.mark.django_db
def test_a_user_whose_use_fails_keeps_no_other_from_its_pattern(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshots.record(snapshot([gpu(1)]))
    used = {t: {PYTHON: 95.0} for t in hours(14) if at_night(datetime.fromtimestamp(t, BERLIN))}
    users = dict.fromkeys(("alice", "bob", "carol"), used)
    monkeypatch.setattr(rows, "_history", lambda host, now: (users, set(hours(14))))
    of_user = rows.of_user

    def odd(user: str, *others: Any) -> list[UsagePattern]:
        if user == "bob":
            raise ValueError("odd")
        return of_user(user, *others)

    monkeypatch.setattr(rows, "of_user", odd)
    assert rows.replace_patterns(BERLIN, NOW) == 2
    assert set(Pattern.objects.values_list("user", flat=True)) == {"alice", "carol"}


@pytest.mark.django_db
def test_a_host_that_fails_keeps_its_patterns_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("box1", "box2"):
        snapshots.record(snapshot([gpu(1, uuid=f"GPU-{name}")], host=host(name=name)))
    nights = [t for t in hours(14) if at_night(datetime.fromtimestamp(t, BERLIN))]

    def history(name: str, now: datetime) -> tuple[Any, set[int]]:
        return {"alice": {t: {Place(f"GPU-{name}", "python"): 95.0} for t in nights}}, set(
            hours(14)
        )

    monkeypatch.setattr(rows, "_history", history)
    assert rows.replace_patterns(BERLIN, NOW) == 2

    def odd(name: str, now: datetime) -> tuple[Any, set[int]]:
        if name == "box1":
            raise ValueError("odd")
        return {}, set(hours(14))

    monkeypatch.setattr(rows, "_history", odd)
    assert rows.replace_patterns(BERLIN, NOW + timedelta(hours=1)) == 0
    assert set(Pattern.objects.values_list("host", flat=True)) == {"box1"}
