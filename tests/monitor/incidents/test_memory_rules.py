from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.facts.incidents import IDLE_HELD, LEAK, MEMORY_HOG, ORPHANED
from monitor.facts.readings import ProcessReading
from monitor.incidents.rules.processes import chance_of_growth, trend
from tests.builders import GIB, NOW, claim, gpu, gpu_uuid, process
from tests.monitor.hog_traces import Processes, Trace, policies, waiting


def holding(
    gib: Callable[[float], float], sm_pct: float | None = 10.0, **more: object
) -> Processes:
    return lambda minute: [process(sm_pct=sm_pct, memory_bytes=int(gib(minute) * GIB), **more)]


def idle_beside(pct: float, owner: str = "bob", blip: float = 0.0) -> Processes:
    """Alice holds 40 GiB and does `blip` % each tenth minute; another works beside her."""

    def both(minute: float) -> list[ProcessReading]:
        mine = process(pid=1, sm_pct=blip if minute % 10 < 1 else 0.0, memory_bytes=40 * GIB)
        other = process(pid=2, sm_pct=pct, user=owner, memory_bytes=GIB)
        return [mine, other]

    return both


def test_who_holds_most_of_a_gpus_memory_for_long_is_a_memory_hog() -> None:
    trace = Trace().play(11, holding(lambda minute: 70))
    assert trace.opened == [MEMORY_HOG]
    assert trace.texts[MEMORY_HOG] == (
        "Heavy memory use outside the queue: python (PID 4200001, alice) holds 70.0 GiB of"
        " 80.0 GiB on GPU 0 for 10 min; no job waits"
    )


def test_half_of_it_is_no_hog() -> None:
    assert Trace().play(30, holding(lambda minute: 40)).told == []


def test_a_gpu_time_hog_is_not_reported_for_its_memory_too() -> None:
    assert Trace().play(30, holding(lambda minute: 75, sm_pct=99.0)).opened == ["sustained"]


def test_unknown_memory_accuses_no_user() -> None:
    trace = Trace().play(30, lambda minute: [process(memory_bytes=None, sm_pct=10.0)])
    assert trace.told == []


def test_memory_that_only_grows_is_a_leak() -> None:
    trace = Trace(every_s=30).play(70, holding(lambda minute: 2 + minute / 20))
    assert trace.opened == [LEAK]
    assert "by 3.00 GiB/h" in trace.texts[LEAK]


@pytest.mark.parametrize(
    "shape",
    [
        lambda minute: 4 if minute < 30 else 20,
        lambda minute: min(30, 2 + minute),
        lambda minute: 10 + 5 * (minute % 7) / 7,
        lambda minute: 30 - minute / 10,
    ],
    ids=["one step", "warming up, then even", "a sawtooth", "falling"],
)
def test_what_grows_once_or_swings_is_no_leak(shape: Callable[[float], float]) -> None:
    assert Trace(every_s=30).play(120, holding(shape)).told == []


def test_a_leak_is_not_judged_before_the_whole_time_is_known() -> None:
    trace = Trace(every_s=30).play(45, holding(lambda minute: 2 + minute / 2))
    assert trace.told == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=20, max_size=20), st.integers(0, 19))
def test_one_wild_point_does_not_turn_a_trend(noise: list[float], wild: int) -> None:
    values = [(float(t), 10.0 * t + noise[t]) for t in range(20)]
    values[wild] = (float(wild), 1e6)
    found = trend(values)
    assert found is not None
    assert 9 < found.slope < 11


@given(st.lists(st.floats(-10, 10).filter(bool), min_size=1, max_size=12, unique_by=abs))
def test_the_chance_of_growth_is_the_part_of_all_signs_that_rise_as_much(
    changes: list[float],
) -> None:
    ranks = range(1, len(changes) + 1)
    ordered = sorted(changes, key=abs)
    rises = sum(rank for rank, change in zip(ranks, ordered, strict=True) if change > 0)
    sums = [
        sum(rank for rank, up in zip(ranks, signs, strict=True) if up)
        for signs in product((False, True), repeat=len(changes))
    ]
    part = sum(total >= rises for total in sums) / len(sums)
    assert chance_of_growth(changes) == pytest.approx(part)


def test_ties_and_pauses_make_growth_no_more_certain() -> None:
    assert chance_of_growth([1.0, 0.0, 0.0]) == 0.5
    assert chance_of_growth([]) == 1
    assert chance_of_growth([1.0, -1.0]) == 0.75


def test_memory_held_idle_beside_a_working_user_is_reported() -> None:
    trace = Trace(every_s=30).play(62, idle_beside(70))
    assert trace.told == [(60.5, "opened", IDLE_HELD)]
    assert trace.texts[IDLE_HELD] == (
        "Memory held idle: python (PID 1, alice) holds 40.0 GiB on GPU 0"
        " and has not used the GPU for 1 h 1 min"
    )


def test_a_keep_alive_is_told_with_its_use() -> None:
    def kept_alive(minute: float) -> list[ProcessReading]:
        pct = 20.0 if round(minute * 2) % 30 == 0 else 0.0
        other = process(pid=2, user="bob", sm_pct=70.0)
        return [process(pid=1, sm_pct=pct, memory_bytes=40 * GIB), other]

    trace = Trace(every_s=30).play(62, kept_alive)
    assert " and has used 0.7 % of the GPU in the last 1 h 1 min" in trace.texts[IDLE_HELD]


def test_a_keep_alive_of_one_percent_is_idle() -> None:
    assert Trace(every_s=30).play(70, idle_beside(70, blip=10.0)).opened == [IDLE_HELD]


def test_work_now_and_then_is_not_idle() -> None:
    assert Trace(every_s=30).play(120, idle_beside(70, blip=60.0)).told == []


def test_idle_memory_is_harmless_while_no_user_needs_the_gpu() -> None:
    assert Trace(every_s=30).play(120, idle_beside(5)).told == []


def test_own_work_beside_idle_memory_is_harmless() -> None:
    assert Trace(every_s=30).play(120, idle_beside(70, owner="alice")).told == []


def test_idle_memory_on_a_gpu_that_a_job_waits_for_is_reported() -> None:
    waits = [waiting("bob", gpu_uuids=(gpu_uuid(0),))]
    assert Trace(every_s=30, demand=waits).play(70, idle_beside(0)).opened == [IDLE_HELD]


def test_a_use_that_is_unknown_is_not_idle() -> None:
    waits = [waiting("bob")]
    trace = Trace(every_s=30, demand=waits)
    assert trace.play(120, holding(lambda minute: 40, sm_pct=None)).told == []


def test_a_job_may_hold_its_booked_memory() -> None:
    trace = Trace(every_s=30, claims=[claim("4")], demand=[waiting("bob")])
    trace.play(120, holding(lambda minute: 75, 0.0, job_ref="4", job_owner="alice"))
    assert trace.told == []


def test_orphaned_memory_is_reported_after_a_while_without_a_user() -> None:
    since = NOW + timedelta(minutes=1)
    trace = Trace(gpus=[gpu(0, orphaned_bytes=12 * GIB, orphaned_since=since)])
    trace.play(12, lambda minute: [])
    assert trace.opened == [ORPHANED]
    assert trace.texts[ORPHANED] == (
        "Orphaned memory: 12.0 GiB on GPU 0 in use by no visible process for 11 min"
    )
    assert trace.found[0].owner is None


def test_each_rule_can_be_switched_off() -> None:
    off = policies(hog_on=False, leak_on=False, idle_on=False, orphaned_on=False)
    size = {"orphaned_bytes": 12 * GIB, "orphaned_since": NOW}
    trace = Trace(off, [gpu(0, **size)], every_s=30, demand=[waiting("bob")])
    assert trace.play(90, holding(lambda minute: 66 + minute / 10, 0.0)).told == []
