from __future__ import annotations

from msgspec.structs import replace

from monitor.facts.readings import Health
from monitor.gpus.policy.changes import UseSplit, by_gpu, of_host
from tests.builders import gpu, process, snapshot


def test_the_use_of_a_gpu_divides_between_jobs_and_other_processes() -> None:
    seen = snapshot(
        [gpu(0)],
        [process(1, sm_pct=30.0, job_ref="7"), process(2, sm_pct=20.0), process(3, sm_pct=5.0)],
    )

    assert by_gpu(seen)[gpu(0).uuid] == UseSplit(30.0, 25.0)


def test_one_unknown_process_makes_its_side_unknown() -> None:
    seen = snapshot([gpu(0)], [process(1, sm_pct=30.0, job_ref="7"), process(2, sm_pct=None)])

    assert by_gpu(seen)[gpu(0).uuid] == UseSplit(30.0, None)


def test_a_gpu_without_processes_is_idle_and_a_lost_one_unknown() -> None:
    lost = replace(gpu(1), health=Health.LOST)
    seen = snapshot([gpu(0), lost])

    assert by_gpu(seen)[gpu(0).uuid] == UseSplit(0.0, 0.0)
    assert by_gpu(seen)[lost.uuid] == UseSplit(None, None)
    assert of_host(seen) == UseSplit(None, None)


def test_a_busy_gpu_without_listed_processes_is_unknown() -> None:
    assert by_gpu(snapshot([gpu(0, utilization_pct=85.0)]))[gpu(0).uuid] == UseSplit(None, None)
    assert by_gpu(snapshot([gpu(0, utilization_pct=2.0)]))[gpu(0).uuid] == UseSplit(0.0, 0.0)


def test_a_host_has_the_mean_of_its_gpus() -> None:
    seen = snapshot(
        [gpu(0), gpu(1)], [process(1, sm_pct=90.0, job_ref="7"), process(2, on=1, sm_pct=40.0)]
    )

    assert of_host(seen) == UseSplit(45.0, 20.0)
