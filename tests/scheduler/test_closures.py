"""Why nothing may start on a GPU that is well."""

from __future__ import annotations

from datetime import timedelta

import pytest

from monitor import gpu_closing
from monitor.gpu_closures import ClosureFact, ClosureKind
from scheduler import closures
from scheduler.blockers import Tier
from tests.builders import GIB, NOW, gpu_uuid, snapshot

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
