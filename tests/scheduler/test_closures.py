"""Why nothing may start on a GPU that is well."""

from __future__ import annotations

from datetime import timedelta

import pytest

from monitor import gpu_closing, snapshots
from monitor.gpu_closures import ClosureFact, ClosureKind
from monitor.readings import ComputeMode, ProcessReading
from scheduler import closures
from scheduler.blockers import Tier
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
    gpu_closing.close(PAUSE, "gpubox")

    (blocker,) = closures.of("gpubox", snapshot(2), NOW)[gpu_uuid(1)]

    assert (blocker.code, blocker.tier, blocker.holder) == ("GpuPaused", Tier.MACHINE, "olga")
    assert blocker.text == "GPU 1 is paused by olga: New fan."


def test_a_gpu_in_quarantine_names_the_process_that_holds_it() -> None:
    gpu_closing.close(QUARANTINE, "gpubox")

    (blocker,) = closures.of("gpubox", snapshot(2), NOW)[gpu_uuid(1)]

    assert (blocker.code, blocker.holder) == ("GpuQuarantined", "job 7, pid 42")
    assert "12 GiB" in blocker.text


def test_all_reasons_of_a_gpu_are_told_and_others_stay_open() -> None:
    gpu_closing.close(PAUSE, "gpubox")
    gpu_closing.close(QUARANTINE, "gpubox")

    found = closures.of("gpubox", snapshot(2), NOW)

    assert {uuid: len(blockers) for uuid, blockers in found.items()} == {gpu_uuid(1): 2}


def test_another_hosts_gpus_and_reopened_ones_are_none_of_it() -> None:
    gpu_closing.close(PAUSE, "elsewhere")
    gpu_closing.close(QUARANTINE, "gpubox")
    later = NOW + timedelta(minutes=1)
    assert gpu_closing.reopen([gpu_uuid(1)], ClosureKind.QUARANTINED, later) == 1

    assert closures.of("gpubox", snapshot(2), later) == {}


def test_closing_twice_is_closing_once() -> None:
    assert gpu_closing.close(PAUSE, "gpubox")
    assert not gpu_closing.close(PAUSE, "gpubox")


def _closed_by_mode(mode: ComputeMode | None, *processes: ProcessReading) -> list[str]:
    seen = snapshot([gpu(0, compute_mode=mode)], list(processes))
    found = closures.of("gpubox", snapshots.loads(snapshots.dumps(seen)), NOW)
    return [blocker.text for blockers in found.values() for blocker in blockers]


def test_a_gpu_on_which_nobody_may_compute_takes_nothing() -> None:
    (text,) = _closed_by_mode(ComputeMode.PROHIBITED)

    assert "compute mode is Prohibited (nvidia-smi -i 0 -c DEFAULT lets it again)" in text
    assert _closed_by_mode(None, process()) == []


def test_a_gpu_that_lets_one_process_in_takes_nothing_beside_it() -> None:
    (text,) = _closed_by_mode(ComputeMode.EXCLUSIVE, process())

    assert text.startswith("alice/python computes on GPU 0, whose compute mode lets one process")
    assert _closed_by_mode(ComputeMode.EXCLUSIVE) == []
    assert _closed_by_mode(ComputeMode.EXCLUSIVE, process(kinds="G")) == []


def test_mps_lets_others_in_beside_its_server() -> None:
    server = process(program="nvidia-cuda-mps-server")

    assert _closed_by_mode(ComputeMode.EXCLUSIVE, server) == []
    assert _closed_by_mode(ComputeMode.EXCLUSIVE, process(kinds="M")) == []
