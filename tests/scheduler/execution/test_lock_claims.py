"""An outside holder of a GPU's lock file has a claim on it, and waiting jobs name that holder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from monitor.facts.accounts import ClaimKind
from monitor.facts.gpus import GpuState
from monitor.gpus.policy.states import with_states
from monitor.gpus.rows import snapshot as snapshots
from scheduler.execution.steps import gpu_closures
from scheduler.execution.steps.gpu_closures import LockClaims
from scheduler.models import LockRefusal
from scheduler.queue.wording import text
from scheduler.runner.confine import locks
from scheduler.runner.confine.locks import HeldLocks
from tests.builders import NOW, claim, gpu_uuid, snapshot

pytestmark = pytest.mark.django_db
SEEN = snapshot(2)


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    settings.LOCK_FOLDER = tmp_path
    return tmp_path


@pytest.fixture
def held(folder: Path) -> Iterator[HeldLocks]:
    """GPU 1, alone, by this process."""
    locked = locks.lock_gpus(folder, [1], alone=True)
    assert isinstance(locked, HeldLocks)
    yield locked
    locked.release()


def test_a_held_lock_is_a_claim_until_it_is_released(held: HeldLocks, folder: Path) -> None:
    part = LockClaims("gpubox", folder)

    part.judge(SEEN, NOW)
    part.judge(SEEN, NOW)

    (fact,) = snapshots.lock_claims("gpubox")
    assert (fact.gpu_uuid, fact.kind, fact.leader_pid) == (gpu_uuid(1), ClaimKind.LOCK, os.getpid())
    assert fact.exclusive
    held.release()
    part.judge(SEEN, NOW)
    assert snapshots.lock_claims("gpubox") == []
    assert snapshots.held_claims("gpubox") == []


def test_it_is_no_job_of_ours(held: HeldLocks, folder: Path) -> None:
    LockClaims("gpubox", folder).judge(SEEN, NOW)

    assert snapshots.open_claims("gpubox") == []
    states = with_states(SEEN.gpus, [], snapshots.held_claims("gpubox"), {}, NOW)
    assert [g.state for g in states.gpus] == [GpuState.IDLE, GpuState.EXTERNAL]
    assert f"(pid {os.getpid()})" in (states.gpus[1].closed or "")


@pytest.mark.usefixtures("held")
def test_a_held_lock_keeps_jobs_off_that_gpu() -> None:
    closures = gpu_closures.gpu_closures("gpubox", SEEN, NOW)

    assert list(closures) == [gpu_uuid(1)]
    (blocker,) = closures[gpu_uuid(1)]
    assert (blocker.code, blocker.gpu) == ("GpuLocked", 1)
    assert f"(pid {os.getpid()})" in (blocker.holder or "")


def test_who_holds_the_host_holds_all_its_gpus(folder: Path) -> None:
    locked = locks.lock_host(folder)
    assert isinstance(locked, HeldLocks)

    assert set(gpu_closures.gpu_closures("gpubox", SEEN, NOW)) == {gpu_uuid(0), gpu_uuid(1)}
    locked.release()


def test_a_shared_lock_closes_no_gpu(folder: Path) -> None:
    locked = locks.lock_gpus(folder, [0], alone=False)
    assert isinstance(locked, HeldLocks)

    assert gpu_closures.gpu_closures("gpubox", SEEN, NOW) == {}
    locked.release()


@pytest.mark.parametrize("ours", [True, False])
def test_a_runners_lock_is_ours_where_our_jobs_are(
    held: HeldLocks, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is another gpucoord's."""
    monkeypatch.setattr("scheduler.runner.confine.locks._program", lambda _: "gpucoord-runner")
    if ours:
        snapshots.open_claim(claim("7", on=1), "gpubox", NOW)

    assert (gpu_uuid(1) in gpu_closures.gpu_closures("gpubox", SEEN, NOW)) is not ours


def test_a_refusal_is_remembered_for_a_moment(folder: Path) -> None:
    gpu_closures.record_refusal("gpubox", [gpu_uuid(0)], "/tmp/gpu0.lock is held by someone", NOW)

    assert text(gpu_closures.gpu_closures("gpubox", SEEN, NOW)[gpu_uuid(0)][0]).endswith(
        "by someone."
    )
    assert gpu_closures.gpu_closures("gpubox", SEEN, NOW + gpu_closures.FIRST_BACKOFF) == {}


def test_a_lock_that_is_refused_again_and_again_is_tried_ever_less_often(folder: Path) -> None:
    now, waits = NOW, []
    for _ in range(9):
        gpu_closures.record_refusal("gpubox", [gpu_uuid(0)], "held", now)
        waits.append(LockRefusal.objects.get().wait_s)
        now += timedelta(seconds=waits[-1] + 1)

    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    gpu_closures.record_refusal("gpubox", [gpu_uuid(0)], "held", now + timedelta(hours=1))
    assert LockRefusal.objects.get().wait_s == 5


def test_no_reading_changes_no_claim(held: HeldLocks, folder: Path) -> None:
    part = LockClaims("gpubox", folder)
    part.judge(SEEN, NOW)
    held.release()

    assert part.judge(None, NOW) is None
    assert len(snapshots.lock_claims("gpubox")) == 1
