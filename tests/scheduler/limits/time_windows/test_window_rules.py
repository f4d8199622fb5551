from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.facts.blockers import Blocker
from scheduler.facts.jobs import Requirement
from scheduler.facts.people import Window
from scheduler.facts.plans import RunningJob, Slot, Yield
from scheduler.limits.time_windows import policy as window_rules
from scheduler.limits.time_windows.policy import (
    WindowPolicy,
    asking,
    clashes,
    closed_for,
    coming,
    current,
    days,
    describe,
    skipped_time,
    spans,
    trusted,
)
from scheduler.queue.wording import text
from tests.builders import GIB, gpu_uuid, slot

# A Monday, 12:00 in UTC, 13:00 in Berlin.
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
BERLIN = "Europe/Berlin"
POLICY = WindowPolicy()


def window(**changes: Any) -> Window:
    """Alice has all GPUs on weekdays from 20:00 to 06:00, in UTC."""
    facts: dict[str, Any] = {
        "id": 1,
        "holder": "alice",
        "members": frozenset({"alice"}),
        "days": (0, 1, 2, 3, 4),
        "start": time(20),
        "end": time(6),
        "zone": "UTC",
    }
    return Window(**(facts | changes))


def utc(day: int, hour: int, minute: int = 0, month: int = 3) -> datetime:
    return datetime(2026, month, day, hour, minute, tzinfo=UTC)


def why(
    owner: str,
    *windows: Window,
    now: datetime = NOON,
    hours: float | None = 1.0,
    preemptible: bool = False,
    gpu: Slot | None = None,
    running: tuple[RunningJob, ...] = (),
    **asks: Any,
) -> Blocker | None:
    """The blockers that keep a job off GPU 0."""
    lasts = None if hours is None else timedelta(hours=hours)
    job = asking(owner, Requirement(**asks), lasts, preemptible, now)
    return closed_for(job, windows, [gpu or slot()], running, now).get(gpu_uuid())


def yields(
    jobs: list[RunningJob], windows: list[Window], rules: WindowPolicy, now: datetime
) -> tuple[Yield, ...]:
    """On GPU 0."""
    return window_rules.yields(jobs, windows, [slot()], rules, now)


def running(job_id: int = 7, owner: str = "bob", **changes: Any) -> RunningJob:
    facts: dict[str, Any] = {
        "id": job_id,
        "owner": owner,
        "priority": 3,
        "requirement": Requirement(memory_bytes=GIB),
        "gpu_uuids": (gpu_uuid(),),
        "started_at": NOON,
        "preemptible": True,
    }
    return RunningJob(**(facts | changes))


def test_a_window_that_ends_before_it_starts_ends_on_the_next_day() -> None:
    first = next(spans(window(), NOON, NOON + timedelta(days=1)))

    assert (first.start, first.end) == (utc(2, 20), utc(3, 6))


def test_it_goes_on_after_midnight_on_a_day_that_it_does_not_name() -> None:
    saturday = utc(7, 3)

    assert (occurrence := current(window(), saturday)) is not None
    assert occurrence.end == utc(7, 6)


def test_days_without_a_gap_are_one_time() -> None:
    always = window(days=tuple(range(7)), start=time(0), end=time(0))

    assert (occurrence := current(always, NOON)) is not None
    assert occurrence.end - NOON > timedelta(days=7)


def test_hours_are_those_of_its_zone_also_when_clocks_change() -> None:
    night = window(days=(5, 6), start=time(22), end=time(6), zone=BERLIN)

    spans_found = list(spans(night, utc(28, 12), utc(30, 12)))

    # In the night to 29 March an hour is missing: it lasts seven.
    assert [(s.start, s.end) for s in spans_found] == [
        (utc(28, 21), utc(29, 4)),
        (utc(29, 20), utc(30, 4)),
    ]


def test_it_counts_only_from_its_first_to_its_last_day() -> None:
    once = window(first_day=date(2026, 3, 4), last_day=date(2026, 3, 4))

    assert [s.start for s in spans(once, NOON, NOON + timedelta(days=14))] == [utc(4, 20)]
    assert coming(once, utc(5, 12)) is None


@settings(max_examples=30)
@given(
    st.sets(st.integers(0, 6), min_size=1),
    st.times(),
    st.times(),
    st.sampled_from(["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe"]),
    st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31)),  # noqa: DTZ001
)
def test_the_next_time_is_not_yet_and_the_present_one_is_now(
    on: set[int], start: time, end: time, zone: str, at: datetime
) -> None:
    some = window(days=tuple(sorted(on)), start=start, end=end, zone=zone)
    now = at.replace(tzinfo=UTC)

    following = coming(some, now)
    assert following is not None
    assert now < following.start <= following.end
    if (present := current(some, now)) is not None:
        assert present.start <= now < present.end


def test_others_are_kept_off_while_it_lasts() -> None:
    reasons = why("bob", window(), now=utc(2, 22))

    assert reasons is not None
    assert (reasons.code, reasons.holder, reasons.until) == ("ReservedFor", "alice", utc(3, 6))
    assert text(reasons) == "GPU 0 is reserved for alice until Tue 3 Mar 06:00 (UTC)."


def test_others_may_start_what_ends_before_it() -> None:
    assert why("bob", window(), hours=8) is None


def test_others_may_not_start_what_might_still_run_then() -> None:
    reasons = why("bob", window(), hours=8.1)

    assert reasons is not None
    assert "from Mon 2 Mar 20:00 (UTC); this job might still run then" in text(reasons)


def test_a_job_of_unknown_length_is_taken_to_last_long() -> None:
    assert why("bob", window(), hours=None) is not None
    assert why("bob", window(days=(2,)), hours=None) is None


def test_a_job_that_may_be_interrupted_starts_before_it_and_not_during_it() -> None:
    assert why("bob", window(), hours=None, preemptible=True) is None
    assert why("bob", window(), now=utc(2, 22), preemptible=True) is not None


def test_its_holder_starts_what_ends_before_it_does() -> None:
    assert why("alice", window(), now=utc(2, 22), hours=8) is None


def test_its_holder_starts_nothing_that_would_run_past_its_end() -> None:
    reasons = why("alice", window(), now=utc(2, 22), hours=8.1)

    assert reasons is not None
    assert (reasons.code, reasons.until) == ("OutsideWindow", utc(3, 6))
    assert "past the end of alice's time window, Tue 3 Mar 06:00 (UTC)" in text(reasons)


def test_its_holder_is_told_to_say_how_long_a_job_runs() -> None:
    reasons = why("alice", window(), now=utc(2, 22), hours=None)

    assert reasons is not None
    assert "Its run time is unknown" in text(reasons)


def test_a_kept_time_leaves_its_holder_free_at_other_times() -> None:
    assert why("alice", window(), hours=1) is None


def test_an_allowed_time_keeps_its_holder_off_at_other_times() -> None:
    reasons = why("alice", window(kept=False))

    assert reasons is not None
    assert (reasons.code, reasons.until) == ("OutsideWindow", utc(2, 20))
    assert text(reasons) == "alice's time window begins Mon 2 Mar 20:00 (UTC)."


def test_a_time_that_is_kept_for_its_holder_is_one_of_their_times_too() -> None:
    afternoon = window(id=2, start=time(15), end=time(18))
    reasons = why("alice", window(kept=False), afternoon)

    assert reasons is not None
    assert reasons.until == utc(2, 15)


def test_an_allowed_time_keeps_nobody_else_off() -> None:
    assert why("bob", window(kept=False), now=utc(2, 22)) is None


def test_an_allowed_time_that_is_over_says_so() -> None:
    reasons = why("alice", window(kept=False, last_day=date(2026, 2, 1)))

    assert reasons is not None
    assert "time window is over" in text(reasons)


def test_it_is_about_its_gpus_alone() -> None:
    assert why("bob", window(gpu_uuids=(gpu_uuid(1),)), now=utc(2, 22)) is None


def test_a_group_has_it_together() -> None:
    lab = window(holder="vision lab", members=frozenset({"alice", "bob"}))

    assert why("bob", lab, now=utc(2, 22)) is None
    assert why("charlie", lab, now=utc(2, 22)) is not None


def test_a_part_of_a_gpu_is_kept_and_the_rest_is_for_all() -> None:
    half = window(share_pct=50.0)
    late = utc(2, 22)

    assert why("bob", half, now=late, memory_bytes=40 * GIB) is None
    reasons = why("bob", half, now=late, memory_bytes=41 * GIB)
    assert reasons is not None
    assert "40 GiB (50 %) of GPU 0 is reserved for alice" in text(reasons)


def test_what_its_holder_uses_of_the_kept_part_counts() -> None:
    half, late = window(share_pct=50.0), utc(2, 22)
    hers = running(owner="alice", requirement=Requirement(memory_bytes=30 * GIB))
    left = slot(free_bytes=50 * GIB)

    assert why("bob", half, now=late, gpu=left, running=(hers,), memory_bytes=40 * GIB) is None
    assert why("bob", half, now=late, gpu=left, running=(hers,), memory_bytes=41 * GIB) is not None


def test_a_job_that_declares_nothing_leaves_no_part_to_be_kept() -> None:
    assert why("bob", window(share_pct=50.0), now=utc(2, 22)) is not None


def test_jobs_of_others_yield_before_it_begins() -> None:
    yield_request = yields([running()], [window()], POLICY, utc(2, 19, 50))

    assert [(y.job_id, y.deadline, y.counts) for y in yield_request] == [(7, utc(2, 20), False)]
    assert yield_request[0].text == "The GPU is kept for alice from Mon 2 Mar 20:00 (UTC)."


def test_its_holders_jobs_yield_before_it_ends() -> None:
    hers = running(owner="alice")

    assert yields([hers], [window()], POLICY, utc(3, 5, 49)) == ()
    assert [y.deadline for y in yields([hers], [window()], POLICY, utc(3, 5, 50))] == [utc(3, 6)]


def test_its_holders_jobs_go_on_where_the_next_time_follows_at_once() -> None:
    always = window(days=tuple(range(7)), start=time(0), end=time(0))

    assert yields([running(owner="alice")], [always], POLICY, utc(2, 23, 55)) == ()


def test_nor_do_they_end_where_another_time_of_its_holder_follows_at_once() -> None:
    evening = window(days=(0,), end=time(0))
    night = window(id=2, days=(1,), start=time(0), end=time(6))
    late = utc(2, 22)

    assert why("alice", evening, night, now=late, hours=8) is None
    assert why("alice", evening, night, now=late, hours=9) is not None
    assert yields([running(owner="alice")], [evening, night], POLICY, utc(2, 23, 55)) == ()


def test_who_has_it_always_may_take_as_long_as_they_like() -> None:
    always = window(days=tuple(range(7)), start=time(0), end=time(0))

    assert why("alice", always, now=utc(2, 22), hours=24 * 30) is None


def test_the_end_is_told_in_the_zone_of_the_time_that_ends() -> None:
    other = window(id=2, gpu_uuids=(gpu_uuid(),), start=time(21), end=time(23), zone=BERLIN)
    reasons = why("alice", other, window(), now=utc(2, 21), hours=24)

    assert reasons is not None
    assert "Tue 3 Mar 06:00 (UTC)" in text(reasons)


@pytest.mark.parametrize(
    ("asked", "leave"),
    [
        ({"memory_bytes": 40 * GIB}, []),
        ({"memory_bytes": 41 * GIB}, [7]),
        ({"exclusive": True}, [7]),
        ({}, [7]),
    ],
)
def test_who_is_in_the_way_of_a_kept_part_yields_before_it_begins(
    asked: dict[str, Any], leave: list[int]
) -> None:
    half = window(share_pct=50.0)
    job = running(requirement=Requirement(**asked))

    assert yields([job], [half], POLICY, utc(2, 19, 49)) == ()
    assert [y.job_id for y in yields([job], [half], POLICY, utc(2, 19, 50))] == leave


def test_of_those_in_the_way_of_a_kept_part_the_least_important_and_youngest_yield() -> None:
    request = Requirement(memory_bytes=20 * GIB)
    jobs = [
        running(1, requirement=request, started_at=NOON + timedelta(hours=1)),
        running(2, requirement=request),
        running(3, requirement=request, priority=2),
        running(4, requirement=request, owner="alice", priority=1),
    ]
    half = window(share_pct=50.0)

    assert [y.job_id for y in yields(jobs, [half], POLICY, utc(2, 22))] == [3]
    assert [y.job_id for y in yields(jobs, [window(share_pct=70.0)], POLICY, utc(2, 22))] == [1, 3]


def test_only_jobs_that_may_be_interrupted_are_asked_unless_the_policy_says_so() -> None:
    firm = running(preemptible=False)

    assert yields([firm], [window()], POLICY, utc(2, 19, 55)) == ()
    assert len(yields([firm], [window()], WindowPolicy(evict_all=True), utc(2, 19, 55))) == 1


def test_nobody_is_asked_twice() -> None:
    assert yields([running(yields=True)], [window()], POLICY, utc(2, 19, 55)) == ()


def test_on_a_saturated_gpu_its_holder_has_the_windows_word() -> None:
    saturated = frozenset({gpu_uuid(0), gpu_uuid(1)})
    mine = window(gpu_uuids=(gpu_uuid(1),))

    assert trusted("alice", [mine], saturated, utc(2, 22)) == {gpu_uuid(1)}
    assert trusted("alice", [mine], saturated, NOON) == frozenset()
    assert trusted("bob", [mine], saturated, utc(2, 22)) == frozenset()


def test_two_that_keep_more_than_a_whole_gpu_clash() -> None:
    mine = window(share_pct=60.0)
    later = window(id=2, holder="bob", start=time(5), end=time(9), share_pct=50.0)

    assert clashes(mine, [later], NOON) == [later]


def test_times_that_begin_to_count_later_clash_too() -> None:
    mine = window(first_day=date(2026, 5, 1))
    later = window(id=2, holder="bob", first_day=date(2026, 6, 1))

    assert clashes(mine, [later], NOON) == [later]
    assert clashes(later, [mine], NOON) == [mine]
    assert clashes(window(last_day=date(2026, 5, 31)), [later], NOON) == []


def test_three_that_keep_more_than_a_whole_gpu_together_clash_though_no_two_do() -> None:
    part = {"share_pct": 40.0}
    mine, bobs = window(**part), window(id=2, holder="bob", **part)
    carols = window(id=3, holder="carol", start=time(23), **part)
    elsewhere = window(id=4, holder="dora", gpu_uuids=(gpu_uuid(1),), **part)

    assert clashes(mine, [bobs], NOON) == []
    assert clashes(mine, [bobs, carols], NOON) == [bobs, carols]
    on_one = window(gpu_uuids=(gpu_uuid(0),), **part)
    assert clashes(on_one, [bobs, elsewhere], NOON) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"share_pct": 40.0},
        {"start": time(6), "end": time(9)},
        {"gpu_uuids": (gpu_uuid(2),)},
        {"kept": False},
        {"days": (5,), "start": time(7), "end": time(9)},
    ],
)
def test_two_that_leave_room_for_each_other_do_not_clash(changes: dict[str, Any]) -> None:
    mine = window(share_pct=60.0, gpu_uuids=(gpu_uuid(0), gpu_uuid(1)))
    base = {"id": 2, "holder": "bob", "start": time(5), "end": time(9), "share_pct": 50.0}

    assert clashes(mine, [window(**(base | changes))], NOON) == []


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((0, 1, 2, 3, 4), "Mon–Fri"),
        ((5, 6), "Sat, Sun"),
        ((0, 2, 4), "Mon, Wed, Fri"),
        ((0, 1, 2, 5), "Mon–Wed, Sat"),
        (tuple(range(7)), "every day"),
    ],
)
def test_days_are_told_in_words(numbers: tuple[int, ...], words: str) -> None:
    assert days(numbers) == words


def test_a_window_is_told_with_its_zone() -> None:
    assert describe(window(zone=BERLIN)) == "Mon–Fri 20:00–06:00 (Europe/Berlin)"


# In 2026 clocks go forward in Berlin on Sunday 29 March, from 02:00 to 03:00.
SKIPPED_DAY = date(2026, 3, 29)
ONE_DAY = {"first_day": SKIPPED_DAY, "last_day": SKIPPED_DAY}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"start": time(2, 30), "end": time(3, 30)}, "02:30"),
        ({"start": time(2, 30), "end": time(6)}, None),
        ({"start": time(22), "end": time(2, 30), "days": (5,)}, None),
        (
            {
                "start": time(2, 30),
                "end": time(6),
                "first_day": SKIPPED_DAY,
                "last_day": SKIPPED_DAY,
            },
            "02:30",
        ),
        (
            {
                "start": time(1),
                "end": time(2, 15),
                "first_day": SKIPPED_DAY,
                "last_day": SKIPPED_DAY,
            },
            "02:15",
        ),
        ({"start": time(2, 30), "end": time(3, 30), "last_day": date(2026, 3, 28)}, None),
        ({"start": time(2, 30), "end": time(3, 30), "zone": "UTC"}, None),
        ({"start": time(2, 30), "end": time(3, 30), "days": (0,)}, None),
        ({"start": time(3), "end": time(4)}, None),
        ({"start": time(20), "end": time(22), "first_day": date(2199, 12, 31)}, None),
    ],
)
def test_a_time_that_clocks_skip_is_found(changes: dict[str, Any], expected: str | None) -> None:
    sundays = {"days": (6,), "zone": BERLIN, **changes}

    skipped = skipped_time(window(**sundays), NOON)

    assert (skipped and f"{skipped:%Y-%m-%d %H:%M}") == (expected and f"2026-03-29 {expected}")


def test_an_occurrence_without_any_time_does_not_come() -> None:
    lost = window(days=(6,), zone=BERLIN, start=time(2, 30), end=time(3, 30))

    starts = [span.start for span in spans(lost, utc(23, 0), utc(6, 0, month=4))]

    assert starts == [utc(5, 0, 30, month=4)]


@pytest.mark.parametrize(
    ("start", "end", "minutes"),
    [(time(2, 10), time(2, 50), (70, 110)), (time(2), time(2, 30), (60, 90))],
)
def test_a_window_within_the_skipped_hour_is_an_hour_later_on_that_day(
    start: time, end: time, minutes: tuple[int, int]
) -> None:
    moved = window(days=(6,), zone=BERLIN, start=start, end=end)
    two_o_clock = datetime(2027, 3, 28, 0, 0, tzinfo=UTC)
    begins, ends = (two_o_clock + timedelta(minutes=minute) for minute in minutes)

    (span,) = spans(moved, two_o_clock, two_o_clock + timedelta(days=1))

    assert (span.start, span.end) == (begins, ends)
    assert skipped_time(moved, two_o_clock - timedelta(days=30)) is None
    assert current(moved, begins) == span
    assert current(moved, begins - timedelta(minutes=1)) is None
    assert coming(moved, two_o_clock) == span
