"""Who holds a GPU's lock file from outside has a claim on it, and is named as what it waits for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from monitor import store
from monitor.claims import ClaimKind
from monitor.gpu_states import GpuState
from monitor.policy.states import with_states
from scheduler import closures, locked
from scheduler.lock_claims import LockClaims
from scheduler.runner import locks
from scheduler.runner.locks import Held
from tests.builders import NOW, claim, gpu_uuid, snapshot

pytestmark = pytest.mark.django_db
SEEN = snapshot(2)


@pytest.fixture
def folder(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings.LOCK_FOLDER = tmp_path
    monkeypatch.setattr(locked, "_refused", {})
    return tmp_path


@pytest.fixture
def held(folder: Path) -> Iterator[Held]:
    """GPU 1, alone, by this process."""
    taken = locks.take(folder, [1], alone=True)
    assert isinstance(taken, Held)
    yield taken
    taken.release()


def test_a_held_lock_is_a_claim_until_it_is_released(held: Held, folder: Path) -> None:
    part = LockClaims("gpubox", folder)

    part.judge(SEEN, NOW)
    part.judge(SEEN, NOW)

    (fact,) = store.lock_claims("gpubox")
    assert (fact.gpu_uuid, fact.kind, fact.leader_pid) == (gpu_uuid(1), ClaimKind.LOCK, os.getpid())
    assert fact.exclusive
    held.release()
    part.judge(SEEN, NOW)
    assert store.lock_claims("gpubox") == []
    assert store.held_claims("gpubox") == []


def test_it_is_no_job_of_ours(held: Held, folder: Path) -> None:
    LockClaims("gpubox", folder).judge(SEEN, NOW)

    assert store.open_claims("gpubox") == []
    states = with_states(SEEN.gpus, [], store.held_claims("gpubox"), {}, NOW)
    assert [g.state for g in states.gpus] == [GpuState.IDLE, GpuState.EXTERNAL]
    assert f"(pid {os.getpid()})" in (states.gpus[1].closed or "")


@pytest.mark.usefixtures("held")
def test_a_held_lock_keeps_jobs_off_that_gpu() -> None:
    found = closures.of("gpubox", SEEN, NOW)

    assert list(found) == [gpu_uuid(1)]
    (blocker,) = found[gpu_uuid(1)]
    assert (blocker.code, blocker.available) == ("GpuLocked", "GPU 1")
    assert f"(pid {os.getpid()})" in (blocker.holder or "")


def test_who_holds_the_host_holds_all_its_gpus(folder: Path) -> None:
    taken = locks.take_host(folder)
    assert isinstance(taken, Held)

    assert set(closures.of("gpubox", SEEN, NOW)) == {gpu_uuid(0), gpu_uuid(1)}
    taken.release()


def test_a_shared_lock_closes_no_gpu(folder: Path) -> None:
    taken = locks.take(folder, [0], alone=False)
    assert isinstance(taken, Held)

    assert closures.of("gpubox", SEEN, NOW) == {}
    taken.release()


@pytest.mark.parametrize("ours", [True, False])
def test_a_runners_lock_is_ours_where_our_jobs_are(
    held: Held, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is another gpucoord's."""
    monkeypatch.setattr("scheduler.runner.lock_holders._program", lambda _: "gpucoord-runner")
    if ours:
        store.open_claim(claim("7", on=1), "gpubox", NOW)

    assert (gpu_uuid(1) in closures.of("gpubox", SEEN, NOW)) is not ours


def test_a_refusal_is_remembered_for_a_moment(folder: Path) -> None:
    locked.remember([gpu_uuid(0)], "/tmp/gpu0.lock is held by someone", NOW)

    assert closures.of("gpubox", SEEN, NOW)[gpu_uuid(0)][0].text.endswith("by someone.")
    assert closures.of("gpubox", SEEN, NOW + locked.TRY_AGAIN) == {}


def test_a_lock_that_is_refused_again_and_again_is_tried_ever_less_often(folder: Path) -> None:
    now, waits = NOW, []
    for _ in range(9):
        locked.remember([gpu_uuid(0)], "held", now)
        waits.append(locked._refused[gpu_uuid(0)].wait.total_seconds())
        now += timedelta(seconds=waits[-1] + 1)

    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    locked.remember([gpu_uuid(0)], "held", now + timedelta(hours=1))
    assert locked._refused[gpu_uuid(0)].wait == locked.TRY_AGAIN


def test_no_reading_changes_no_claim(held: Held, folder: Path) -> None:
    part = LockClaims("gpubox", folder)
    part.judge(SEEN, NOW)
    held.release()

    assert part.judge(None, NOW) is None
    assert len(store.lock_claims("gpubox")) == 1
