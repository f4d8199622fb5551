from __future__ import annotations

from datetime import timedelta

import pytest

from monitor.facts.readings import CallCost, GpuSweep, InstanceReading
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import ProcessUse
from monitor.pages import metrics as monitor_metrics
from monitor.pages.metrics import Families
from tests.builders import GIB, NOW, claim, gpu, gpu_uuid, snapshot
from tests.monitor.gpus.sampling.test_sampler import at
from tests.monitor.scrape import Scrape, scrape_of
from tests.monitor.usage.test_ledger import busy, sampler, work

pytestmark = pytest.mark.django_db
USED = "gpucoord_user_gpu_seconds_total"


def scrape(later: float = 0) -> Scrape:
    into = Families()
    monitor_metrics.add_metrics(into, at(later))
    return scrape_of(into)


def run(sweep: GpuSweep, since: int, until: int, probe: str = "nvml") -> None:
    """One sampler that sweeps each 2 s."""
    running = sampler(sweep, probe)
    for second in range(since, until + 1, 2):
        running.step(at(second))


def rows() -> float:
    return sum(ProcessUse.objects.values_list("sm_s", flat=True))


def test_a_persons_gpu_time_is_that_of_their_processes() -> None:
    run(busy(work(sm_pct=50.0)), 0, 60)

    found = scrape()

    assert found.value(USED, user="alice", host="box", simulated="false") == pytest.approx(rows())
    assert rows() == pytest.approx(30, rel=0.15)
    held = found.value("gpucoord_user_gpu_held_seconds_total")
    assert found.value("gpucoord_user_gpu_known_seconds_total") == pytest.approx(held)


def test_processes_of_one_person_add_up() -> None:
    run(busy(work(), work(gpu_uuid=gpu_uuid(1))), 0, 30)

    assert len(ProcessUse.objects.all()) == 2
    assert scrape().value(USED, user="alice") == pytest.approx(rows())


def test_a_sampler_that_takes_over_counts_nothing_twice() -> None:
    run(busy(work()), 0, 30)
    run(busy(work()), 32, 60)
    run(busy(work()), 61, 90)

    assert scrape().value(USED, user="alice") == pytest.approx(rows())


def test_the_count_stays_when_the_rows_are_pruned() -> None:
    run(busy(work()), 0, 30)
    before = scrape().value(USED)
    ProcessUse.objects.all().delete()

    assert scrape().value(USED) == before > 0


def test_a_process_with_an_unknown_owner_is_counted_as_unknown() -> None:
    run(busy(work(pid=999)), 0, 30)

    assert scrape().value(USED, user="(unknown)") > 0


def test_a_jobs_work_is_its_owners() -> None:
    snapshots.open_claim(claim("7", owner="bob", leader_pid=300, leader_start_ticks=9), "box", NOW)
    run(busy(work()), 0, 30)

    assert scrape().value(USED, user="bob") > 0
    assert scrape().values(USED, user="alice") == []


def test_simulated_work_is_never_added_to_real_work() -> None:
    run(busy(work()), 0, 20)
    real = scrape().value(USED)
    run(busy(work()), 30, 60, probe="simulated")

    found = scrape()

    assert found.value(USED, simulated="false") == real
    assert found.value(USED, simulated="true") > 0


def test_unknown_use_is_held_but_neither_used_nor_known() -> None:
    run(busy(work(sm_pct=None), work(pid=301, sm_pct=None)), 0, 30)

    found = scrape()

    assert sum(found.values("gpucoord_user_gpu_held_seconds_total")) > 20
    assert sum(found.values("gpucoord_user_gpu_known_seconds_total")) == 0


def test_the_duration_of_each_nvml_call_is_exported() -> None:
    cost = CallCost(call="processes", count=12, p50_ms=4.5, p99_ms=9.0, errors=1, every=2)
    snapshots.record(snapshot(1, costs=(cost,), dropped=3))

    found = scrape()

    assert found.value("gpucoord_nvml_call_seconds", call="processes", stat="p50") == 0.0045
    assert found.value("gpucoord_nvml_call_seconds", call="processes", stat="p99") == 0.009
    assert found.value("gpucoord_nvml_calls_total", call="processes") == 12
    assert found.value("gpucoord_nvml_call_errors_total", call="processes") == 1
    assert found.value("gpucoord_nvml_call_sweeps", call="processes") == 2
    assert found.value("gpucoord_dropped_statements_total") == 3


def test_energy_orphaned_memory_and_instances_are_exported() -> None:
    part = InstanceReading(gpu_uuid=gpu_uuid(), uuid="MIG-1", name="1g.10gb", memory_used_bytes=GIB)
    one = gpu(energy_mj=5_500, orphaned_bytes=2 * GIB)
    snapshots.record(snapshot([one], instances=(part,), at=NOW + timedelta(seconds=1)))

    found = scrape(1)

    assert found.value("gpu_energy_joules_total") == 5.5
    assert found.value("gpu_memory_orphaned_bytes") == 2 * GIB
    used = found.value("gpu_instance_memory_used_bytes", instance_uuid="MIG-1", profile="1g.10gb")
    assert used == GIB
    assert "gpu_instance_memory_total_bytes" not in found.names
