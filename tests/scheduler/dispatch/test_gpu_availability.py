"""Why nothing may start on a GPU that is well."""

from __future__ import annotations

from datetime import timedelta

import pytest

from monitor.facts.gpus import ClosureFact, ClosureKind
from monitor.facts.readings import ComputeMode, ProcessReading
from monitor.gpus.rows import closures as availability
from monitor.gpus.rows import snapshot as snapshot_codec
from scheduler.execution.steps import gpu_closures
from scheduler.facts.blockers import Tier
from scheduler.queue.wording import text
from tests.builders import GIB, NOW, gpu, gpu_uuid, process, snapshot

pytestmark = pytest.mark.django_db
PAUSE = ClosureFact(
    gpu_uuid=gpu_uuid(1), kind=ClosureKind.PAUSED, since=NOW, by="olga", reason="New fan."
)
QUARANTINE = ClosureFact(
    gpu_uuid=gpu_uuid(1),
    kind=ClosureKind.QUARANTINED,
    since=NOW,
    job_ref="7",
    pid=42,
    memory_bytes=12 * GIB,
)


def test_a_paused_gpu_says_who_paused_it_and_why() -> None:
    availability.close(PAUSE, "gpubox")

    (blocker,) = gpu_closures.gpu_closures("gpubox", snapshot(2), NOW)[gpu_uuid(1)]

    assert (blocker.code, blocker.tier, blocker.holder) == ("GpuPaused", Tier.MACHINE, "olga")
    assert text(blocker) == "GPU 1 is paused by olga: New fan."


def test_a_gpu_in_quarantine_names_the_process_that_holds_it() -> None:
    availability.close(QUARANTINE, "gpubox")

    (blocker,) = gpu_closures.gpu_closures("gpubox", snapshot(2), NOW)[gpu_uuid(1)]

    assert (blocker.code, blocker.holder) == ("GpuQuarantined", "job 7, pid 42")
    assert "12 GiB" in text(blocker)


def test_all_reasons_of_a_gpu_are_told_and_others_stay_open() -> None:
    availability.close(PAUSE, "gpubox")
    availability.close(QUARANTINE, "gpubox")

    closures = gpu_closures.gpu_closures("gpubox", snapshot(2), NOW)

    assert {uuid: len(blockers) for uuid, blockers in closures.items()} == {gpu_uuid(1): 2}


def test_another_hosts_gpus_and_reopened_ones_are_none_of_it() -> None:
    availability.close(PAUSE, "elsewhere")
    availability.close(QUARANTINE, "gpubox")
    later = NOW + timedelta(minutes=1)
    assert availability.reopen([gpu_uuid(1)], ClosureKind.QUARANTINED, later) == 1

    assert gpu_closures.gpu_closures("gpubox", snapshot(2), later) == {}


def test_closing_twice_is_closing_once() -> None:
    assert availability.close(PAUSE, "gpubox")
    assert not availability.close(PAUSE, "gpubox")


def _closed_by_mode(mode: ComputeMode | None, *processes: ProcessReading) -> list[str]:
    latest = snapshot([gpu(0, compute_mode=mode)], list(processes))
    closures = gpu_closures.gpu_closures(
        "gpubox", snapshot_codec.loads(snapshot_codec.dumps(latest)), NOW
    )
    return [text(blocker) for blockers in closures.values() for blocker in blockers]


def test_a_gpu_on_which_nobody_may_compute_takes_nothing() -> None:
    (reason,) = _closed_by_mode(ComputeMode.PROHIBITED)

    assert "compute there (nvidia-smi -i 0 -c DEFAULT admits them again)" in reason
    assert _closed_by_mode(None, process()) == []


def test_a_gpu_that_lets_one_process_in_takes_nothing_beside_it() -> None:
    (reason,) = _closed_by_mode(ComputeMode.EXCLUSIVE, process())

    assert reason.startswith(
        "alice/python computes on GPU 0, whose compute mode admits one process"
    )
    assert _closed_by_mode(ComputeMode.EXCLUSIVE) == []
    assert _closed_by_mode(ComputeMode.EXCLUSIVE, process(kinds="G")) == []


def test_mps_lets_others_in_beside_its_server() -> None:
    server = process(program="nvidia-cuda-mps-server")

    assert _closed_by_mode(ComputeMode.EXCLUSIVE, server) == []
    assert _closed_by_mode(ComputeMode.EXCLUSIVE, process(kinds="M")) == []
