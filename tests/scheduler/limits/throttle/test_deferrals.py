from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.incidents.policy.constraints import Gauge
from scheduler.limits.throttle.policy import pressure
from scheduler.limits.throttle.policy.pressure import (
    CALM_S,
    CAP_S,
    JITTER_PCT,
    Deferral,
    LoadSignal,
    PressurePolicy,
    deferred,
    delay_s,
    early,
    saturated,
)

POLICY = PressurePolicy()
BUSY = (LoadSignal("gpu_util", "all GPUs are busy", 91.4),)


def played(strained: list[bool], every_s: float = 5.0) -> list[Deferral | None]:
    """The deferral after each look: strained=[True, False…]."""
    deferral: Deferral | None = None
    trace = []
    for number, is_strained in enumerate(strained):
        deferral = deferred(deferral, BUSY if is_strained else (), number * every_s, "box/normal")
        trace.append(deferral)
    return trace


def test_the_first_deferral_lasts_thirty_seconds_and_each_next_one_twice_as_long() -> None:
    for number, lasts in enumerate([30, 60, 120, 240, 240, 240], start=1):
        assert lasts * 0.9 <= delay_s(number, "x") <= lasts * 1.1
    assert delay_s(1, "x") == 30


def test_jitter_is_the_same_for_the_same_host_and_differs_between_hosts() -> None:
    assert delay_s(3, "a") == delay_s(3, "a") != delay_s(3, "b")
    assert all(108 <= delay_s(3, str(seed)) <= 132 for seed in range(50))


def test_the_log_line_names_job_time_and_what_strains() -> None:
    [deferral] = played([True])
    assert deferral is not None
    expected = "System under load, deferring job 42 for 30 s (gpu_util=91)"
    assert pressure.line(42, deferral, 0.0) == (expected, {"seconds": 30, "gpu_util": 91})


def test_while_it_is_strained_one_deferral_follows_the_other() -> None:
    numbers = [d.number for d in played([True] * 40) if d]
    assert numbers[:6] == [1] * 6
    assert numbers[6] == 2
    assert max(numbers) == 3


def test_it_holds_until_its_time_is_over_though_the_load_went() -> None:
    trace = played([True, False, False, False, False, False, False])
    assert [d.holds for d in trace if d] == [True] * 6 + [False]


def test_a_free_machine_keeps_nobody_waiting_longer_than_the_calm() -> None:
    trace = played([True] * 40 + [False] * 10)
    released = next(i for i, d in enumerate(trace) if d and not d.holds)
    assert (released - 40) * 5 <= CALM_S + 5


def test_a_relapse_waits_longer_and_a_long_calm_starts_over() -> None:
    soon = played([True] + [False] * 8 + [True])[-1]
    late = played([True] + [False] * 80 + [True])[-1]
    assert soon is not None
    assert late is not None
    assert (soon.number, late.number) == (2, 1)


def test_a_gpu_gets_busy_above_eighty_and_calm_below_seventy() -> None:
    assert saturated({"a": 81.0, "b": 80.0, "c": None}, (), POLICY) == {"a"}
    assert saturated({"a": 71.0, "b": 69.0, "c": None}, ("a", "b", "c"), POLICY) == {"a", "c"}


def test_a_threshold_of_a_hundred_switches_it_off_for_background_jobs_too() -> None:
    off = PressurePolicy(gpu_busy_pct=100.0)
    assert saturated({"a": 99.0}, (), off, earlier=True) == frozenset()


def test_background_jobs_leave_a_gpu_earlier() -> None:
    assert saturated({"a": 75.0}, (), POLICY, earlier=True) == {"a"}
    assert saturated({"a": 75.0}, (), POLICY) == frozenset()


def gauge(value: float | None) -> Gauge:
    return Gauge("host_memory_use", "memory", "memory", value, 80.0, 75.0)


def test_background_jobs_stop_before_the_host_is_busy_for_the_others() -> None:
    assert early([gauge(69)], ())[0] == ()
    strains, kinds = early([gauge(71)], ())
    assert [str(signal) for signal in strains] == ["memory=71"]
    assert early([gauge(66)], kinds)[1] == kinds
    assert early([gauge(64)], kinds)[1] == frozenset()
    assert early([gauge(None)], kinds)[1] == kinds


@settings(max_examples=50)
@given(st.lists(st.booleans(), min_size=1, max_size=80))
def test_no_deferral_begins_without_strain_nor_lasts_beyond_the_cap(strained: list[bool]) -> None:
    trace = played(strained)
    for number, deferral in enumerate(trace):
        before = trace[number - 1] if number else None
        if deferral is not None and deferral.holds and not strained[number]:
            assert before is not None
            assert before.until_t == deferral.until_t
        if deferral is not None and deferral.holds:
            assert deferral.until_t - number * 5 <= CAP_S * (1 + JITTER_PCT / 100)
        if strained[number]:
            assert deferral is not None
            assert deferral.holds


def test_several_strains_at_once_make_an_overload() -> None:
    from scheduler.facts.jobs import PriorityClass

    def over(*strains: LoadSignal) -> bool:
        deferrals = deferred(None, strains, 0.0)
        return pressure.is_overloaded({PriorityClass.NORMAL: deferrals} if deferrals else {})

    assert not over(BUSY[0])
    assert over(BUSY[0], LoadSignal("memory", "memory above 80 %", 85))
    assert over(LoadSignal("data_disk", "No room for logs", hard=True))


@pytest.mark.parametrize("number", [1, 5, 1000])
def test_however_often_it_is_deferred_the_cap_holds(number: int) -> None:
    assert delay_s(number) <= 264
