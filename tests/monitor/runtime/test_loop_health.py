from __future__ import annotations

from datetime import UTC, datetime, timedelta

from monitor.runtime.policy import LoopFact, LoopState, complete, judge, verdict, worst

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def fact(loop: str = "sampler", ago_s: float | None = 0.5, **more: object) -> LoopFact:
    last = None if ago_s is None else NOW - timedelta(seconds=ago_s)
    return LoopFact(**{"loop": loop, "host": "north", "every_s": 1, "last_tick_at": last, **more})


def test_a_loop_that_has_just_ticked_is_ok() -> None:
    assert judge(fact(), NOW) is LoopState.OK


def test_a_short_pause_is_no_fault() -> None:
    assert judge(fact(ago_s=10), NOW) is LoopState.OK


def test_a_long_pause_is_stale() -> None:
    assert judge(fact(ago_s=10.1), NOW) is LoopState.STALE


def test_a_slow_loop_may_pause_for_three_of_its_periods() -> None:
    assert judge(fact(ago_s=15, every_s=5), NOW) is LoopState.OK
    assert judge(fact(ago_s=15.1, every_s=5), NOW) is LoopState.STALE


def test_a_loop_that_never_ticked_is_stale() -> None:
    assert judge(fact(ago_s=None), NOW) is LoopState.STALE


def test_a_fault_differs_from_silence() -> None:
    assert judge(fact(error="ValueError"), NOW) is LoopState.FAILING
    assert judge(fact(error="ValueError", ago_s=60), NOW) is LoopState.STALE


def test_a_tick_in_the_future_is_no_negative_age() -> None:
    assert fact(ago_s=-3).age_s(NOW) == 0


def test_the_worst_state_counts() -> None:
    assert worst([LoopState.OK, LoopState.FAILING]) is LoopState.FAILING
    assert worst([LoopState.STALE, LoopState.FAILING]) is LoopState.STALE
    assert worst([]) is LoopState.STALE


def test_loops_that_never_ran_are_not_forgotten() -> None:
    loops = complete([fact("scheduler"), fact("sampler", host="south")], "north")

    assert [f.loop for f in loops] == ["sampler", "controller", "scheduler"]
    assert [judge(f, NOW) for f in loops] == [LoopState.STALE, LoopState.STALE, LoopState.OK]


def test_the_verdict_names_the_worst_loop() -> None:
    well, silent = fact("sampler"), fact("scheduler", ago_s=60)

    assert verdict([well], NOW) == "All services running"
    assert verdict([well, silent], NOW) == "The scheduler on north is not running"
    assert verdict([fact(error="x")], NOW) == "The sampler on north fails"
    assert verdict([silent, fact(ago_s=None)], NOW) == (
        "The scheduler on north is not running, and 1 more"
    )
    assert verdict([fact(ago_s=None)], NOW) == "The sampler on north has never run"
