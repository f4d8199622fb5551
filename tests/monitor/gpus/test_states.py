from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from monitor.facts.accounts import ClaimFact, ClaimKind
from monitor.facts.gpus import ClosureFact, ClosureKind, Condition, GpuState
from monitor.facts.readings import GpuReading, GpuSweep, Health
from monitor.gpus.policy.changes import complete, explained
from monitor.gpus.policy.states import as_booked, state_of, with_states
from tests.builders import GIB, NOW, claim, gpu, gpu_uuid, process, snapshot

LATER = NOW + timedelta(minutes=1)


SEEN = {"seen": NOW, "since": NOW}
ENDED = {"seen": NOW, "until": NOW}
LLM = {"kind": ClaimKind.LLM}


@pytest.mark.parametrize(
    ("reading", "processes", "claims", "state"),
    [
        (gpu(), [], [], GpuState.IDLE),
        (gpu(), [process()], [], GpuState.EXTERNAL),
        (gpu(), [], [claim(kind=ClaimKind.LOCK)], GpuState.EXTERNAL),
        (gpu(memory_used_bytes=3 * GIB), [], [], GpuState.EXTERNAL),
        (gpu(memory_used_bytes=GIB // 2), [], [], GpuState.IDLE),
        (gpu(), [], [claim()], GpuState.BOOTING_SCRIPT),
        (gpu(), [process(job_ref="1")], [claim()], GpuState.BOOTING_SCRIPT),
        (gpu(), [process(job_ref="1")], [claim(**SEEN)], GpuState.SCRIPT_BUSY),
        (gpu(), [process()], [claim(**SEEN)], GpuState.SCRIPT_BUSY),
        (gpu(), [], [claim(), claim("2", **SEEN)], GpuState.SCRIPT_BUSY),
        (gpu(), [], [claim(since=NOW - timedelta(minutes=6))], GpuState.SCRIPT_BUSY),
        (gpu(), [], [claim(**LLM)], GpuState.BOOTING_LLM),
        (gpu(), [], [claim(**LLM), claim("2")], GpuState.BOOTING_SCRIPT),
        (gpu(), [process(job_ref="1")], [claim(**LLM, **SEEN)], GpuState.LLM_BUSY),
        (gpu(), [process(job_ref="1", sm_pct=0.0)], [claim(**LLM, **SEEN)], GpuState.LLM_READY),
        (gpu(), [process(job_ref="1", sm_pct=None)], [claim(**LLM, **SEEN)], GpuState.LLM_READY),
        (gpu(utilization_pct=40.0), [], [claim(**LLM, **SEEN)], GpuState.LLM_BUSY),
        (gpu(), [process(sm_pct=90.0)], [claim(**ENDED)], GpuState.COOLING),
        (gpu(), [], [claim(**ENDED)], GpuState.COOLING),
        (gpu(), [], [claim(until=NOW)], GpuState.IDLE),
        (gpu(), [process(job_ref="1")], [claim(until=NOW)], GpuState.COOLING),
        (gpu(), [], [claim(**ENDED), claim("2")], GpuState.BOOTING_SCRIPT),
        (gpu(condition=Condition.THROTTLED), [], [claim(**SEEN)], GpuState.THROTTLED),
        (gpu(health=Health.FAILING), [process()], [claim()], GpuState.FAILING),
        (gpu(health=Health.LOST), [], [claim()], GpuState.LOST),
    ],
)
def test_the_state_of_a_gpu_follows_from_its_processes_and_claims(
    reading, processes, claims, state
) -> None:  # type: ignore[no-untyped-def]
    assert state_of(reading, processes, claims, NOW) is state


def test_a_pause_hides_what_runs_but_not_that_it_is_lost() -> None:
    busy = [claim(**SEEN)]
    assert state_of(gpu(), [], busy, NOW, paused=True) is GpuState.PAUSED
    lost = gpu(health=Health.LOST)
    assert state_of(lost, [], busy, NOW, paused=True) is GpuState.LOST


def test_a_state_keeps_its_since_until_it_changes() -> None:
    first = with_states([gpu()], [], [], {}, NOW)
    assert first.gpus[0].state_since == NOW
    assert first.changes[0].was is None
    before = {g.uuid: g for g in first.gpus}
    same = with_states([gpu()], [], [], before, LATER)
    assert (same.gpus[0].state_since, same.changes) == (NOW, ())
    busy = with_states([gpu()], [process()], [], before, LATER)
    assert (busy.gpus[0].state, busy.gpus[0].state_since) == (GpuState.EXTERNAL, LATER)
    assert busy.changes[0].was is GpuState.IDLE


def test_processes_of_another_gpu_change_nothing() -> None:
    seen = with_states([gpu(0), gpu(1)], [process(on=1)], [claim(on=1)], {}, NOW)
    assert [g.state for g in seen.gpus] == [GpuState.IDLE, GpuState.BOOTING_SCRIPT]


def test_a_closed_gpu_says_why() -> None:
    pause = ClosureFact(
        gpu_uuid=gpu_uuid(0), kind=ClosureKind.PAUSED, since=NOW, by="olga", reason="New fan."
    )
    (seen,) = with_states([gpu()], [], [], {}, NOW, [pause]).gpus
    assert (seen.state, seen.closed) == (GpuState.PAUSED, "Paused by olga: New fan.")


def test_an_illegal_transition_is_reported_and_the_measured_state_applies() -> None:
    before = known(gpu(state=GpuState.IDLE, state_since=NOW))
    found = with_states([gpu()], [], [claim(**SEEN)], before, LATER)
    assert found.gpus[0].state is GpuState.SCRIPT_BUSY
    assert found.faults == ("GPU 0: a GPU that is idle can't be script_busy next",)


@pytest.mark.parametrize(
    ("old", "booted", "is_legal"),
    [
        (GpuState.IDLE, claim(phase="busy"), True),
        (GpuState.COOLING, claim(phase="busy"), True),
        (GpuState.LLM_READY, claim(phase="busy"), True),
        (GpuState.COOLING, claim(phase="ready", **LLM), True),
        # A sweep has seen it boot.
        (GpuState.COOLING, claim(phase="busy", **SEEN), False),
    ],
)
def test_a_boot_between_two_sweeps_is_no_illegal_transition(
    old: GpuState, booted: ClaimFact, is_legal: bool
) -> None:
    before = known(gpu(state=old, state_since=NOW))
    found = with_states([gpu()], [], [booted], before, LATER)

    assert found.changes
    assert (found.faults == ()) is is_legal


def test_after_a_hole_any_move_may_have_been() -> None:
    before = known(gpu(state=GpuState.IDLE, state_since=NOW))
    assert with_states([gpu()], [], [claim(**SEEN)], before, LATER, watched=False).faults == ()


def known(*readings):  # type: ignore[no-untyped-def]
    return {g.uuid: g for g in readings}


def test_a_gpu_that_is_not_listed_any_more_is_lost() -> None:
    seen = complete(GpuSweep(gpus=(gpu(1),)), known(gpu(0), gpu(1)), NOW)
    assert [g.health for g in seen] == [Health.LOST, Health.OK]
    lost = seen[0]
    assert (lost.name, lost.memory_total_bytes) == (gpu(0).name, gpu(0).memory_total_bytes)
    assert (lost.utilization_pct, lost.memory_used_bytes) == (None, None)


def test_gpus_are_failing_not_lost_while_none_can_be_read() -> None:
    sweep = GpuSweep(problem="The kernel module is gone.")
    (seen,) = complete(sweep, known(gpu(0)), NOW)
    assert (seen.health, seen.problem) == (Health.FAILING, "The kernel module is gone.")


def test_a_gpu_that_cannot_be_opened_is_reported_as_the_missing_one() -> None:
    sweep = GpuSweep(gpus=(gpu(1),), unnamed=1, problem="Off the bus.", remedy="See dmesg.")
    seen = complete(sweep, known(gpu(0), gpu(1)), NOW)
    assert (seen[0].health, seen[0].problem) == (Health.LOST, "Off the bus. See dmesg.")
    assert explained(sweep, seen).problem is None
    nobody = complete(sweep, known(gpu(1)), NOW)
    assert explained(sweep, nobody).problem == "Off the bus."


def test_a_lost_gpu_keeps_the_reason_of_its_loss() -> None:
    lost = gpu(0, health=Health.LOST, problem="Off the bus.", state=GpuState.LOST, state_since=NOW)
    assert complete(GpuSweep(gpus=(gpu(1),)), known(lost), NOW)[0].problem == "Off the bus."


def test_a_lost_gpu_says_that_another_gpu_has_its_number_now() -> None:
    renumbered = replace(gpu(1), index=0)
    before = known(gpu(0), gpu(1))
    for _ in range(2):
        seen = complete(GpuSweep(gpus=(renumbered,)), before, NOW)
        before = {reading.uuid: reading for reading in seen}

    problems = [reading.problem for reading in seen if reading.health is Health.LOST]
    assert problems == [
        "The driver does not list this GPU any more. Another GPU has the number 0 now."
    ]


def test_a_gpu_that_falls_silent_keeps_its_name_and_size() -> None:
    silent = gpu(0, health=Health.LOST, name=None, memory_total_bytes=None)
    (seen,) = complete(GpuSweep(gpus=(silent,)), known(gpu(0)), NOW)
    assert (seen.name, seen.memory_total_bytes) == (gpu(0).name, gpu(0).memory_total_bytes)


def test_a_gpu_lost_for_more_than_a_day_is_forgotten() -> None:
    old = gpu(0, health=Health.LOST, state=GpuState.LOST, state_since=NOW)
    assert complete(GpuSweep(gpus=(gpu(1),)), known(old), NOW + timedelta(hours=23))[0] != gpu(1)
    assert complete(GpuSweep(gpus=(gpu(1),)), known(old), NOW + timedelta(hours=25)) == (gpu(1),)


def test_a_gpu_is_idle_by_use_from_its_first_reading_below_five_percent_on() -> None:
    first, second = NOW, NOW + timedelta(seconds=1)

    def seen(pct: float | None, before: GpuReading | None, at: datetime, **more: Any) -> GpuReading:
        earlier = {before.uuid: before} if before else {}
        return with_states([gpu(0, utilization_pct=pct)], (), (), earlier, at, **more).gpus[0]

    one = seen(4.9, None, first)
    assert (one.idle_since, one.idle_s(second)) == (first, 1.0)
    assert seen(0.0, one, second).idle_since == first
    assert seen(0.0, one, second, watched=False).idle_since == second
    busy = seen(5.0, one, second)
    assert (busy.idle_since, busy.idle_s(second)) == (None, 0.0)
    unknown = seen(None, one, second)
    assert (unknown.idle_since, unknown.idle_s(second)) == (None, None)


def _shown(state: GpuState, *claims: ClaimFact, at: datetime = NOW, **changes: Any) -> GpuReading:
    read = snapshot([gpu(state=state, state_since=NOW, **changes)], [process(job_ref="1")])
    (shown,) = as_booked(replace(read, at=at), {gpu_uuid(0): claims}).gpus
    return shown


LEFT = claim("1", **LLM, phase="ready", seen=NOW, since=NOW, until=LATER)
CAME = claim("2", since=LATER)


@pytest.mark.parametrize(
    ("claims", "state"),
    [
        ((LEFT, CAME), GpuState.BOOTING_SCRIPT),
        ((LEFT,), GpuState.COOLING),
        ((CAME,), GpuState.BOOTING_SCRIPT),
    ],
)
def test_a_state_follows_claims_that_changed_after_the_sweep(
    claims: tuple[ClaimFact, ...], state: GpuState
) -> None:
    shown = _shown(GpuState.LLM_READY, *claims)

    assert (shown.state, shown.state_since) == (state, LATER)


def test_a_state_that_was_read_after_the_change_of_its_claims_stays() -> None:
    assert _shown(GpuState.LLM_READY, LEFT, CAME, at=LATER + timedelta(seconds=9)) == gpu(
        state=GpuState.LLM_READY, state_since=NOW
    )


@pytest.mark.parametrize("state", [GpuState.PAUSED, GpuState.LOST, GpuState.THROTTLED])
def test_claims_change_no_state_that_is_imposed(state: GpuState) -> None:
    assert _shown(state, LEFT, CAME).state is state
