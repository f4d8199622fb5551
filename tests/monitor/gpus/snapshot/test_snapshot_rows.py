from __future__ import annotations

from datetime import timedelta

import pytest

from monitor.facts.accounts import ClaimFact
from monitor.facts.gpus import GpuState
from monitor.facts.readings import GpuReading, Health, HostReading, Snapshot
from monitor.gpus.rows import snapshot as snapshots
from monitor.gpus.sampling.probes.simulated import Scenario
from monitor.journal.rows import events
from monitor.models import Gpu, HostSample, LatestSnapshot, Sample
from tests.monitor.made_readings import NOW

pytestmark = pytest.mark.django_db


def shot(seq: int = 1, **gpu: object) -> Snapshot:
    reading = GpuReading(**{"uuid": "GPU-1", "index": 0, "utilization_pct": 40.0, **gpu})  # type: ignore[arg-type]
    return Snapshot(
        seq=seq,
        at=NOW + timedelta(seconds=seq),
        probe="simulated",
        host=HostReading(name="box", memory_total_bytes=100, memory_available_bytes=30),
        gpus=(reading,),
    )


def test_it_gives_back_the_newest_snapshot_whole() -> None:
    snapshots.record(shot(1))
    snapshots.record(shot(2))
    assert snapshots.newest("box") == shot(2)
    assert snapshots.newest() == shot(2)
    assert snapshots.newest_all() == [shot(2)]
    assert LatestSnapshot.objects.count() == 1


def test_it_has_no_snapshot_before_the_first() -> None:
    assert snapshots.newest() is None
    assert snapshots.next_seq("box") == 1


def test_it_counts_on_from_the_newest() -> None:
    snapshots.record(shot(41))
    assert snapshots.next_seq("box") == 42


def test_it_keeps_a_sample_per_gpu_and_second() -> None:
    for seq in (1, 2, 2):
        snapshots.record(shot(seq))
    t = int(NOW.timestamp())
    stored = Sample.objects.filter(gpu_id="GPU-1").order_by("t")
    assert [row.t - t for row in stored] == [1, 2]
    assert [row.memory_used_bytes for row in HostSample.objects.order_by("t")] == [70, 70]


def test_it_keeps_unknown_as_unknown() -> None:
    snapshots.record(shot(1, utilization_pct=None))
    assert Sample.objects.get().utilization_pct is None


def test_it_leaves_a_gap_while_a_gpu_is_lost() -> None:
    snapshots.record(shot(1))
    snapshots.record(shot(2, health=Health.LOST, state=GpuState.LOST, utilization_pct=None))
    row = Gpu.objects.get()
    assert Sample.objects.count() == 1
    assert row.state == "lost"
    assert row.last_seen_at == NOW + timedelta(seconds=1)


def test_it_rewrites_only_the_gpus_that_changed() -> None:
    snapshots.record(shot(1, name="old"))
    snapshots.record(shot(2, name="new"), changed=set())
    assert Gpu.objects.get().name == "old"
    snapshots.record(shot(3, name="new"), changed={"GPU-1"})
    assert Gpu.objects.get().name == "new"


def test_it_keeps_when_a_gpu_was_first_seen() -> None:
    snapshots.record(shot(1))
    snapshots.record(shot(9))
    assert Gpu.objects.get().first_seen_at == NOW + timedelta(seconds=1)


def test_it_records_the_past_in_bulk() -> None:
    scenario = Scenario(gpus=3)
    past = [NOW - timedelta(seconds=10 * i) for i in range(20)]
    assert snapshots.record_history(scenario.snapshot(at, "box") for at in past) == 60
    assert Sample.objects.filter(gpu_id=scenario.uuids[0]).count() == 20
    assert HostSample.objects.filter(host="box").count() == 20
    assert snapshots.newest() is None


def test_it_opens_names_and_closes_claims() -> None:
    fact = ClaimFact(job_ref="7", gpu_uuid="GPU-1", owner="alice", memory_bytes=5)
    snapshots.open_claim(fact, "box", NOW)
    snapshots.open_claim(fact, "elsewhere", NOW)
    assert snapshots.set_leader("7", 4321, 99) == 2
    (claim,) = snapshots.open_claims("box")
    assert (claim.leader_pid, claim.leader_start_ticks, claim.since) == (4321, 99, NOW)
    assert snapshots.close_claims("7", NOW) == 2
    assert snapshots.open_claims("box") == []


def test_it_lists_recent_events_newest_first() -> None:
    events.add("GPU_LOST", "GPU 3 is gone.", now=NOW, severity="error", gpu_uuid="GPU-1")
    events.add("GPU_FOUND", "GPU 3 is back.", now=NOW + timedelta(seconds=5), gpu_uuid="GPU-1")
    events.add("JOB_FINISHED", "Job 7 ended.", now=NOW, job_ref="7")
    assert [e.kind for e in events.recent(2)] == ["GPU_FOUND", "JOB_FINISHED"]
    assert [e.kind for e in events.recent(gpu_uuid="GPU-1")] == ["GPU_FOUND", "GPU_LOST"]
    assert [e.text for e in events.recent(kind="JOB_FINISHED")] == ["Job 7 ended."]
