from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from monitor.facts.accounts import ClaimFact
from monitor.facts.gpus import Condition
from monitor.facts.readings import GpuReading, GpuSweep, Health, Snapshot
from monitor.gpus.policy.health import HealthPolicy, examine
from monitor.gpus.sampling.probes.simulated import (
    FIRST_PID,
    GIB,
    HOT_EVERY_S,
    LOST_EVERY_S,
    Load,
    Scenario,
    SimulatedProbe,
)
from tests.builders import snapshot
from tests.monitor.made_readings import NOW

instants = st.floats(1.7e9, 1.9e9).map(lambda t: datetime.fromtimestamp(t, UTC))
SCENARIO = Scenario()


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@given(instants)
def test_it_is_the_same_at_the_same_instant(now: datetime) -> None:
    assert SCENARIO.at(now) == Scenario().at(now)


def test_another_seed_is_another_server() -> None:
    other = Scenario(seed=2)
    assert other.uuids != SCENARIO.uuids
    assert other.at(NOW) != SCENARIO.at(NOW)


@given(instants)
def test_its_figures_are_possible(now: datetime) -> None:
    sweep = SCENARIO.at(now)
    for gpu in sweep.gpus:
        mine = [p for p in sweep.processes if p.gpu_uuid == gpu.uuid]
        if gpu.health is Health.LOST:
            assert not mine
            continue
        assert 0 <= (gpu.utilization_pct or 0) <= 100
        assert sum(p.memory_bytes or 0 for p in mine) == gpu.memory_used_bytes
        total = (gpu.memory_used_bytes or 0) + (gpu.memory_reserved_bytes or 0)
        assert total <= (gpu.memory_total_bytes or 0)
        assert sum(p.sm_pct or 0 for p in mine) <= (gpu.utilization_pct or 0) + 1
        assert 60 <= (gpu.power_w or 0) <= (gpu.power_limit_w or 0)
        assert 20 <= (gpu.temperature_c or 0) <= 90


def test_its_processes_can_not_be_mistaken_for_real_ones() -> None:
    sweep = SCENARIO.at(NOW)
    assert sweep.processes
    assert all(p.pid >= FIRST_PID for p in sweep.processes)


def test_it_has_a_hog_an_idle_holder_and_an_owner_unknown() -> None:
    past = [SCENARIO.at(after(60 * i)) for i in range(60)]
    busy = [sum((s.gpus[i].utilization_pct or 0) > 90 for s in past) for i in range(8)]
    assert max(busy) > 55
    sweep = past[0]
    idle = [p for s in past for p in s.processes if p.sm_pct == 0 and p.memory_bytes == 40 * GIB]
    assert len(idle) > 50
    assert any(p.pid not in sweep.identities for p in sweep.processes)


def test_one_pid_may_be_on_two_gpus() -> None:
    for minute in range(0, 60, 5):
        pids = [p.pid for p in SCENARIO.at(after(60 * minute)).processes]
        if len(pids) > len(set(pids)):
            return
    pytest.fail("no pid was ever on two GPUs")


def test_processes_come_and_go() -> None:
    pids = [{p.pid for p in SCENARIO.at(after(60 * i)).processes} for i in range(30)]
    assert len(set().union(*pids)) > len(pids[0]) + 3


def test_a_gpu_is_lost_for_a_while_and_found_again() -> None:
    states = [
        SCENARIO.at(after(s)).gpus[5].health is Health.LOST for s in range(0, int(LOST_EVERY_S), 15)
    ]
    assert 4 <= sum(states) <= 6


def test_two_gpus_stay_nearly_free_for_jobs() -> None:
    for minute in range(0, 120, 7):
        gpus = SCENARIO.at(after(60 * minute)).gpus
        assert (gpus[0].memory_used_bytes or 0) < 8 * GIB
        assert gpus[7].memory_used_bytes == 0


def test_the_temperature_follows_the_load_with_a_delay() -> None:
    load = Load(gpu=7, pid=4242, gib=20, began=NOW.timestamp())

    def heat(seconds: float) -> float:
        return SCENARIO.at(after(seconds), [load]).gpus[7].temperature_c or 0

    assert heat(0) < 35
    assert heat(8) < heat(30) < heat(120)
    ended = replace(load, ended=after(200).timestamp())
    cooling = [SCENARIO.at(after(200 + s), [ended]).gpus[7].temperature_c or 0 for s in (1, 30, 90)]
    assert cooling == sorted(cooling, reverse=True)
    assert cooling[0] > 50


@pytest.mark.parametrize("gpus", [1, 2, 3, 9, 64])
def test_it_has_as_many_gpus_as_wanted(gpus: int) -> None:
    sweep = Scenario(gpus).at(NOW)
    assert [g.index for g in sweep.gpus] == list(range(gpus))
    assert len({g.uuid[-8:] for g in sweep.gpus}) == gpus


def test_it_has_about_as_many_processes_as_wanted() -> None:
    assert 440 <= len(Scenario(64, processes=500).at(NOW).processes) <= 560


def claim(**changes: object) -> ClaimFact:
    facts = {
        "job_ref": "7",
        "gpu_uuid": SCENARIO.uuids[7],
        "owner": "alice",
        "memory_bytes": 20 * GIB,
        "leader_pid": 4242,
        "since": NOW,
    }
    return ClaimFact(**(facts | changes))  # type: ignore[arg-type]


def gpu7(sweep: GpuSweep) -> GpuReading:
    return sweep.gpus[7]


def test_a_running_job_is_seen_under_its_real_pid() -> None:
    probe = SimulatedProbe()
    early, late = probe.read(after(1), [claim()]), probe.read(after(60), [claim()])
    (first,) = [p for p in early.processes if p.pid == 4242]
    (process,) = [p for p in late.processes if p.pid == 4242]
    assert process.gpu_uuid == SCENARIO.uuids[7]
    assert (first.memory_bytes or 0) < (process.memory_bytes or 0) <= 20 * GIB
    assert (gpu7(late).utilization_pct or 0) > 70
    assert 4242 not in late.identities


def test_a_claim_without_a_process_puts_no_load_on_a_gpu() -> None:
    seen = SimulatedProbe().read(after(60), [claim(leader_pid=None)])
    assert gpu7(seen).utilization_pct == 0


def test_a_job_that_ended_leaves_only_its_heat() -> None:
    probe = SimulatedProbe()
    for second in range(0, 121, 10):
        probe.read(after(second), [claim()])
    seen = probe.read(after(122), [])
    assert gpu7(seen).memory_used_bytes == 0
    assert gpu7(seen).utilization_pct == 0
    assert (gpu7(seen).temperature_c or 0) > 50
    probe.read(after(400), [])
    assert probe._loads == {}


def test_a_claim_on_a_gpu_of_another_server_is_ignored() -> None:
    probe = SimulatedProbe()
    assert probe.read(NOW, [claim(gpu_uuid="GPU-elsewhere")]) == SCENARIO.at(NOW)


def test_a_gpu_is_too_hot_for_a_while_and_gets_no_new_work() -> None:
    conditions: list[Condition | None] = []
    last: Snapshot | None = None
    for second in range(0, int(HOT_EVERY_S) + 200, 5):
        sweep = SCENARIO.at(after(second))
        found = examine(sweep, sweep.gpus, last, HealthPolicy(), after(second))
        last = snapshot(found.gpus, health=found.health)
        conditions.append(found.gpus[4].condition)
    assert set(conditions) == {Condition.HEALTHY, Condition.THROTTLED}
    assert 18 <= conditions.count(Condition.THROTTLED) <= 50
