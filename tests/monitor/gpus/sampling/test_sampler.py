from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import pytest
from django.db import transaction

from monitor.facts.accounts import ClaimFact
from monitor.facts.gpus import Condition, GpuState, Xid
from monitor.facts.readings import (
    GpuProcess,
    GpuSweep,
    Health,
    HostReading,
    ProcessIdentity,
    Snapshot,
)
from monitor.gpus.rows import closures as availability
from monitor.gpus.rows import snapshot as snapshots
from monitor.gpus.sampling import step as sampler_module
from monitor.gpus.sampling.policy import hang_text
from monitor.gpus.sampling.probes.host import HostProbe
from monitor.gpus.sampling.probes.nvml import NvmlProbe
from monitor.gpus.sampling.probes.simulated import SimulatedProbe
from monitor.gpus.sampling.step import Sampler
from monitor.journal.rows import events
from monitor.models import Claim, Event, Gpu, HostSample, Sample
from tests.builders import NOW, claim, gpu
from tests.monitor.fake_nvml import GIB, FakeGpu, FakeNvml, Hang
from tests.processes.attempts import wait_for

pytestmark = pytest.mark.django_db


class ScriptedProbe:
    """Shows what `sweep` is set to; raises it when it is an error."""

    def __init__(self, sweep: GpuSweep | Exception, name: str = "nvml") -> None:
        self.name = name
        self.sweep = sweep
        self.reads = 0
        self.claims: Sequence[ClaimFact] = ()

    def open(self) -> None: ...
    def close(self) -> None: ...

    def read(self, now: datetime, claims: Sequence[ClaimFact]) -> GpuSweep:
        self.reads += 1
        self.claims = claims
        if isinstance(self.sweep, Exception):
            raise self.sweep
        return self.sweep


class QuietMachine:
    """A host named box whose processes are those of `known`."""

    name = "box"

    def __init__(self, *known: ProcessIdentity) -> None:
        self.known = {who.pid: who for who in known}
        self.fails = False

    def open(self) -> None: ...
    def close(self) -> None: ...

    def read(self, now: datetime) -> HostReading:
        if self.fails:
            raise RuntimeError("no /proc")
        return HostReading(name="box", load_1=5.0)

    def identities(self, pids: Collection[int]) -> dict[int, ProcessIdentity]:
        if self.fails:
            raise RuntimeError("no /proc")
        return {pid: self.known[pid] for pid in pids if pid in self.known}


def sampler(probe: object, machine: object | None = None) -> Sampler:
    made = Sampler(transaction.atomic, probe, machine or QuietMachine())  # type: ignore[arg-type]
    made.open()
    return made


def at(second: float) -> datetime:
    return NOW + timedelta(seconds=second)


def kinds() -> list[str]:
    return [event.kind for event in reversed(events.recent(100))]


def test_it_stores_two_snapshots_in_a_row() -> None:
    running = sampler(SimulatedProbe(), HostProbe("box"))
    first, second = running.step(at(0)), running.step(at(1))
    assert (first.seq, second.seq) == (1, 2)
    assert snapshots.newest("box") == second
    assert Gpu.objects.count() == 8
    assert Sample.objects.count() == sum(
        g.health is Health.OK for shot in (first, second) for g in shot.gpus
    )
    assert HostSample.objects.count() == 2
    assert second.host.disk_read_bps is not None


def test_it_wakes_the_live_page_after_the_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[tuple[str, bytes]] = []
    monkeypatch.setattr(sampler_module, "wake", lambda name, payload: heard.append((name, payload)))
    running = sampler(SimulatedProbe())
    # A sweep between two ticks, as for an ended job, is not sent to viewers.
    for second in (0, 1, 1.2, 2):
        running.step(at(second))
    assert heard == [("live", b"1"), ("live", b"2"), ("live", b"4")]


def test_memory_of_an_ended_job_that_is_free_wakes_the_scheduler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(sampler_module, "wake", lambda name, *_, **__: heard.append(name))
    probe = ScriptedProbe(GpuSweep(gpus=(gpu(0),)))
    running = sampler(probe)
    snapshots.open_claim(claim("7"), "box", at(0))
    running.step(at(0))
    snapshots.close_claims("7", at(1))
    running.step(at(1.1))

    assert heard == ["live", "scheduler", "live"]


def test_processes_are_listed_at_once_while_an_ended_job_may_hold_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    FakeNvml(FakeGpu(gpu(0).uuid, compute=[(999_999, GIB)])).install(monkeypatch)
    probe = NvmlProbe(60)
    running = sampler(probe)
    running.step(at(0))
    listed = [running.step(at(1)), probe._tier.is_fresh][1]
    snapshots.open_claim(claim("7", leader_pid=1), "box", at(1))
    snapshots.close_claims("7", at(2))
    running.step(at(3))

    assert (listed, probe._tier.is_fresh) == (False, True)


def test_it_continues_counting_after_a_restart() -> None:
    sampler(SimulatedProbe()).step(at(0))
    assert sampler(SimulatedProbe()).step(at(1)).seq == 2


def test_rates_go_on_across_a_restart() -> None:
    sampler(SimulatedProbe(), HostProbe("box")).step(at(0))
    again = sampler(SimulatedProbe(), HostProbe("box")).step(at(1))
    assert again.host.disk_write_bps is not None


def test_it_says_since_when_across_a_restart() -> None:
    probe = ScriptedProbe(GpuSweep(gpus=(gpu(0),)))
    sampler(probe).step(at(0))
    later = sampler(probe).step(at(100))
    assert (later.gpus[0].state, later.gpus[0].state_since) == (GpuState.IDLE, at(0))
    assert Gpu.objects.get().state_since_at == at(0)


def test_it_knows_a_job_s_process_by_its_leader() -> None:
    who = ProcessIdentity(pid=300, start_ticks=9, created_at=NOW, user="nobody", lineage=(299,))
    process = GpuProcess(gpu_uuid=gpu(0).uuid, pid=300)
    probe = ScriptedProbe(GpuSweep(gpus=(gpu(0),), processes=(process,)))
    snapshots.open_claim(claim("7", leader_pid=299, leader_start_ticks=5), "box", NOW)
    running = sampler(probe, QuietMachine(who))
    shot = running.step(at(0))
    assert (shot.processes[0].job_ref, shot.processes[0].job_owner) == ("7", "alice")
    assert shot.gpus[0].state is GpuState.BOOTING_SCRIPT
    assert running.step(at(1)).gpus[0].state is GpuState.SCRIPT_BUSY
    assert probe.claims[0].job_ref == "7"


def test_it_knows_this_very_process_as_a_simulated_job() -> None:
    probe = SimulatedProbe()
    fact = ClaimFact(
        job_ref="7", gpu_uuid=probe.scenario.uuids[7], owner="alice", leader_pid=os.getpid()
    )
    snapshots.open_claim(fact, "box", NOW)
    shot = sampler(probe, HostProbe("box")).step(at(30))
    (process,) = [p for p in shot.processes if p.job_ref == "7"]
    assert process.pid == os.getpid()
    assert process.program


def test_a_vanished_pid_stays_with_its_memory_and_no_owner() -> None:
    process = GpuProcess(gpu_uuid=gpu(0).uuid, pid=300, memory_bytes=77)
    shot = sampler(ScriptedProbe(GpuSweep(gpus=(gpu(0),), processes=(process,)))).step(at(0))
    assert (shot.processes[0].user, shot.processes[0].memory_bytes) == (None, 77)
    assert shot.gpus[0].state is GpuState.EXTERNAL


def test_a_host_that_can_not_be_read_ends_no_sweep(caplog: pytest.LogCaptureFixture) -> None:
    machine = QuietMachine()
    machine.fails = True
    running = sampler(ScriptedProbe(GpuSweep(gpus=(gpu(0),))), machine)
    running.step(at(0))
    shot = running.step(at(1))
    assert (shot.host.load_1, len(shot.gpus)) == (None, 1)
    assert [
        r.message.partition(" failed")[0] for r in caplog.records if r.levelno >= logging.WARNING
    ] == [
        "sampler: processes",
        "sampler: host probe",
    ]


def test_a_probe_that_breaks_ends_no_sweep() -> None:
    probe = ScriptedProbe(GpuSweep(gpus=(gpu(0),)))
    running = sampler(probe)
    running.step(at(0))
    probe.sweep = ValueError("odd struct")
    shot = running.step(at(1))
    assert shot.host.load_1 == 5.0
    assert "odd struct" in (shot.problem or "")
    assert shot.gpus[0].health is Health.FAILING
    probe.sweep = GpuSweep(gpus=(gpu(0),))
    assert running.step(at(2)).gpus[0].health is Health.OK
    assert kinds() == ["NVML_UNAVAILABLE", "NVML_AVAILABLE"]


def test_a_gpu_that_vanishes_is_shown_as_lost_and_comes_back() -> None:
    probe = ScriptedProbe(GpuSweep(gpus=(gpu(0), gpu(1))))
    running = sampler(probe)
    running.step(at(0))
    probe.sweep = GpuSweep(gpus=(gpu(0),))
    for second in range(1, 4):
        shot = running.step(at(second))
    assert (shot.gpus[1].state, shot.gpus[1].state_since) == (GpuState.LOST, at(1))
    assert Gpu.objects.get(uuid=gpu(1).uuid).state == "lost"
    assert sampler(probe).step(at(5)).gpus[1].state is GpuState.LOST
    probe.sweep = GpuSweep(gpus=(gpu(0), gpu(1)))
    running.step(at(6))
    assert kinds() == ["GPU_LOST", "GPU_FOUND"]


def test_a_gpu_that_comes_and_goes_all_the_time_does_not_flood() -> None:
    probe = ScriptedProbe(GpuSweep())
    running = sampler(probe)
    for second in range(60):
        probe.sweep = GpuSweep(gpus=(gpu(0), gpu(1)) if second % 2 else (gpu(0),))
        running.step(at(second))
    assert Event.objects.filter(kind="GPU_LOST").count() == 5


def test_after_more_than_ten_failures_it_leaves_nvml_alone_for_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = FakeNvml(FakeGpu("GPU-a")).install(monkeypatch)
    running = sampler(NvmlProbe())
    running.step(at(0))
    nvml.errors = {"*": 9}
    shots = [running.step(at(second)) for second in range(1, 40)]
    assert shots[-1].failures == 11
    assert shots[-1].gpus[0].health is Health.FAILING
    nvml.calls.clear()
    running.step(at(50))
    assert nvml.calls == []
    nvml.errors = {}
    assert running.step(at(75)).gpus[0].health is Health.OK
    assert kinds() == ["NVML_UNAVAILABLE", "NVML_MONITORING_OFF", "NVML_AVAILABLE"]


def test_it_counts_failures_on_across_a_restart() -> None:
    probe = ScriptedProbe(GpuSweep(problem="gone"))
    running = sampler(probe)
    for second in range(11):
        running.step(at(second))
    probe.reads = 0
    again = sampler(probe)
    for second in range(11, 20):
        again.step(at(second))
    assert probe.reads == 0
    again.step(at(80))
    assert probe.reads == 1
    assert kinds() == ["NVML_UNAVAILABLE", "NVML_MONITORING_OFF"]


def test_a_machine_without_a_driver_is_reported_once() -> None:
    probe = ScriptedProbe(GpuSweep(problem="No driver.", remedy="Install it."), name="none")
    running = sampler(probe)
    shots: list[Snapshot] = [running.step(at(second)) for second in range(15)]
    assert (shots[-1].problem, shots[-1].failures, shots[-1].gpus) == ("No driver.", 0, ())
    assert probe.reads == 15
    assert kinds() == ["NVML_UNAVAILABLE"]


def test_gpus_of_a_simulation_do_not_stay_when_the_real_probe_comes() -> None:
    sampler(SimulatedProbe()).step(at(0))
    shot = sampler(ScriptedProbe(GpuSweep(gpus=(gpu(0),)))).step(at(1))
    assert [g.uuid for g in shot.gpus] == [gpu(0).uuid]


def test_nothing_is_kept_of_a_tick_whose_guard_refuses() -> None:
    class Lost(Exception):
        pass

    class RejectingProbe:
        def __enter__(self) -> None:
            raise Lost

        def __exit__(self, *error: object) -> None: ...

    running = Sampler(RejectingProbe, SimulatedProbe(), QuietMachine())  # type: ignore[arg-type]
    running.open()
    with pytest.raises(Lost):
        running.step(at(0))
    assert snapshots.newest() is None


def test_the_settings_build_it() -> None:
    running = sampler_module.build(transaction.atomic)
    running.open()
    try:
        assert running.step(at(0)).probe == "simulated"
    finally:
        running.close()


def test_a_hot_gpu_is_throttled_and_reported_and_stays_so_in_the_next_process() -> None:
    hot = GpuSweep(gpus=(gpu(0, temperature_c=91.0),))
    running = sampler(ScriptedProbe(GpuSweep(gpus=(gpu(0),))))
    running.step(at(0))
    running._probe.sweep = hot  # type: ignore[attr-defined]
    running.step(at(1))
    assert running.step(at(2)).gpus[0].condition is Condition.THROTTLED
    cooler = GpuSweep(gpus=(gpu(0, temperature_c=82.0),))
    assert sampler(ScriptedProbe(cooler)).step(at(3)).gpus[0].condition is Condition.THROTTLED
    assert kinds() == ["GPU_THROTTLED"]


def test_a_restart_of_the_machine_forgives_xids() -> None:
    shot = GpuSweep(gpus=(gpu(0),), xids=(Xid(gpu(0).uuid, 79),))
    running = sampler(ScriptedProbe(shot))
    assert running.step(at(0)).gpus[0].condition is Condition.FAILING
    machine = QuietMachine()
    machine.read = lambda now: HostReading(name="box", boot_id="another")  # type: ignore[method-assign]
    after = sampler(ScriptedProbe(GpuSweep(gpus=(gpu(0),))), machine)
    assert after.step(at(60)).gpus[0].condition is Condition.HEALTHY


def test_a_program_s_xid_is_an_event_for_the_job_s_owner() -> None:
    snapshots.open_claim(claim("12", owner="alice"), "box", NOW)
    shot = GpuSweep(gpus=(gpu(0),), xids=(Xid(gpu(0).uuid, 31),))
    sampler(ScriptedProbe(shot)).step(at(0))
    (event,) = events.recent(kind="GPU_XID")
    assert (event.owner, event.job_ref, event.gpu_uuid) == ("alice", "12", gpu(0).uuid)


def test_errors_of_nvml_add_up_across_processes() -> None:
    probe = ScriptedProbe(GpuSweep(gpus=(gpu(0),), query_errors=2, init_failures=1))
    sampler(probe).step(at(0))
    shot = sampler(probe).step(at(1))
    assert (shot.query_errors, shot.init_failures) == (4, 2)
    assert snapshots.newest("box") == shot


def test_after_a_hang_the_new_process_first_reports_it_and_then_retries() -> None:
    probe = ScriptedProbe(GpuSweep(gpus=(gpu(0),)))
    sampler(probe).step(at(0))
    events.add("NVML_HUNG", "It hung.", now=at(7), severity="error", host="box")
    fresh = sampler(probe)
    shown = fresh.step(at(8))
    assert "hangs" in (shown.problem or "")
    assert (shown.gpus[0].health, probe.reads) == (Health.FAILING, 1)
    assert fresh.step(at(12)).gpus[0].health is Health.OK
    assert probe.reads == 2


def test_a_second_hang_leaves_the_gpus_alone_for_a_minute() -> None:
    probe = ScriptedProbe(GpuSweep(gpus=(gpu(0),)))
    for second in (0, 60):
        events.add("NVML_HUNG", "It hung.", now=at(second), severity="error", host="box")
    fresh = sampler(probe)
    for second in range(61, 120):
        fresh.step(at(second))
    assert probe.reads == 0
    fresh.step(at(120))
    assert probe.reads == 1


def test_each_of_many_owners_hears_of_a_program_s_xid() -> None:
    for number in range(8):
        snapshots.open_claim(claim(str(number), owner=f"user{number}"), "box", NOW)
    shot = GpuSweep(gpus=(gpu(0),), xids=(Xid(gpu(0).uuid, 31),))
    sampler(ScriptedProbe(shot)).step(at(0))
    assert len({event.owner for event in events.recent(kind="GPU_XID")}) == 8


def job_on_box(probe: ScriptedProbe) -> Sampler:
    """A sampler that has seen pid 300 of job 7 at work on GPU 0."""
    who = ProcessIdentity(pid=300, start_ticks=9, created_at=NOW, user="alice")
    snapshots.open_claim(claim("7", leader_pid=300, leader_start_ticks=9), "box", NOW)
    running = sampler(probe, QuietMachine(who))
    running.step(at(0))
    running.step(at(1))
    snapshots.close_claims("7", at(1.5))
    return running


def held(probe: ScriptedProbe) -> None:
    held = GpuProcess(gpu_uuid=gpu(0).uuid, pid=300, memory_bytes=12 * 1024**3)
    probe.sweep = GpuSweep(gpus=(gpu(0),), processes=(held,))


def test_a_job_that_gives_its_memory_back_leaves_its_gpu_idle() -> None:
    probe = ScriptedProbe(GpuSweep())
    held(probe)
    running = job_on_box(probe)
    cooling = running.step(at(2))
    probe.sweep = GpuSweep(gpus=(gpu(0),))
    states = [running.step(at(s)).gpus[0].state for s in (3, 4)]
    assert (cooling.gpus[0].state, cooling.processes[0].job_ref) == (GpuState.COOLING, "7")
    assert states == [GpuState.COOLING, GpuState.IDLE]
    assert snapshots.held_claims("box") == []


def test_memory_that_is_not_given_back_quarantines_the_gpu_until_it_is() -> None:
    probe = ScriptedProbe(GpuSweep())
    held(probe)
    running = job_on_box(probe)
    for second in range(2, 9):
        running.step(at(second))
    (closure,) = availability.on("box")
    assert (closure.job_ref, closure.pid) == ("7", 300)
    again = sampler(probe).step(at(10))
    assert again.gpus[0].closed == closure.text
    assert len(availability.on("box")) == 1
    probe.sweep = GpuSweep(gpus=(gpu(0),))
    running.step(at(11))
    assert availability.on("box") == []
    assert [kind for kind in kinds() if "QUARANTINE" in kind] == [
        "GPU_QUARANTINED",
        "GPU_QUARANTINE_OVER",
    ]


def test_an_illegal_state_is_reported_once_and_sampling_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    running = sampler(ScriptedProbe(GpuSweep(gpus=(gpu(0),))))
    running.step(at(0))
    snapshots.open_claim(claim("7"), "box", at(0))
    Claim.objects.update(seen_at=at(0))
    shots = [running.step(at(s)) for s in (1, 2)]
    assert [shot.gpus[0].state for shot in shots] == [GpuState.SCRIPT_BUSY] * 2
    assert [getattr(r, "kind", "") for r in caplog.records if r.levelno >= logging.WARNING] == [
        "GPU_STATE_FAULT"
    ]


def test_after_a_hang_of_one_gpu_the_next_process_reads_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = FakeNvml(*(FakeGpu(f"GPU-{n}") for n in range(8))).install(monkeypatch)
    text = hang_text("nvmlDeviceGetPowerUsage", "GPU-3", "sampler", 6)
    events.add("NVML_HUNG", text, now=at(-1), host="box", gpu_uuid="GPU-3")
    nvml.gpus[3].odd = {"nvmlDeviceGetPowerUsage": Hang()}

    seen = sampler(NvmlProbe()).step(at(0))

    assert [gpu.index for gpu in seen.gpus if gpu.health is Health.OK] == [0, 1, 2, 4, 5, 6, 7]
    assert "nvmlDeviceGetPowerUsage did not come back" in (seen.gpus[3].problem or "")


def test_a_trial_of_a_gpu_that_still_hangs_delays_no_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = FakeNvml(*(FakeGpu(f"GPU-{n}") for n in range(8))).install(monkeypatch)
    text = hang_text("nvmlDeviceGetPowerUsage", "GPU-3", "sampler", 6)
    events.add("NVML_HUNG", text, now=at(-60), host="box", gpu_uuid="GPU-3")
    hang = nvml.gpus[3].odd["nvmlDeviceGetPowerUsage"] = Hang()
    running = sampler(NvmlProbe())

    wait_for(lambda: running.step(at(0)) and running.asking)
    shown = [gpu.index for gpu in running.step(at(1)).gpus if gpu.health is Health.OK]
    assert shown == [0, 1, 2, 4, 5, 6, 7]
    assert running.asking
    assert running.asking[0] == "nvmlDeviceGetPowerUsage"
    assert running.asking_about == "GPU-3"
    assert not events.recent(kind="NVML_ANSWERS")

    hang.set()
    wait_for(lambda: running.step(at(2)).gpus[3].health is Health.OK)
    assert [row.gpu_uuid for row in events.recent(kind="NVML_ANSWERS")] == ["GPU-3"]
    assert running.asking is None


def test_a_gpu_that_answered_in_a_trial_is_read_by_the_next_process_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    FakeNvml(*(FakeGpu(f"GPU-{n}") for n in range(8))).install(monkeypatch)
    for kind, second in (("NVML_HUNG", -90), ("NVML_ANSWERS", -20)):
        events.add(kind, "", now=at(second), host="box", gpu_uuid="GPU-3")

    assert sampler(NvmlProbe()).step(at(0)).gpus[3].health is Health.OK


def test_a_reading_that_jumps_acts_when_the_next_sweep_confirms_it() -> None:
    probe = ScriptedProbe(GpuSweep(gpus=(gpu(0),)))
    running = sampler(probe)
    running.step(at(0))
    probe.sweep = GpuSweep(gpus=(gpu(0, temperature_c=115.0),))
    seen = running.step(at(1)).gpus[0]
    assert (seen.temperature_c, seen.condition) == (None, Condition.HEALTHY)
    probe.sweep = GpuSweep(gpus=(gpu(0),))
    running.step(at(2))
    assert running.step(at(3)).gpus[0].temperature_c == 35.0
    assert kinds() == []
