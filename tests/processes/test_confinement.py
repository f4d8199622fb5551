"""Bounds of a real job: locks, a cgroup, hidden devices, a share of time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from monitor.gpus.sampling.probes.simulated import SimulatedProbe, is_paused
from scheduler.runner import attempt_files
from scheduler.runner.confine import cgroups, landlock, limit_trials, locks
from scheduler.runner.confine.cgroups import Cgroup, CgroupParent
from scheduler.runner.confine.locks import HeldLocks
from tests.builders import claim
from tests.pace import Stopwatch
from tests.processes.attempts import RunningAttempt, wait_for

pytestmark = pytest.mark.processes
Run = Callable[..., RunningAttempt]
SPIN = "i=0; while :; do i=$((i+1)); done"


@pytest.fixture(scope="module")
def place() -> Iterator[CgroupParent]:
    parent = cgroups.find_parent()
    if not parent.kind:
        pytest.skip(f"no cgroup can be made here: {parent.problem}")
    yield parent
    for folder in map(Path, parent.folders):
        for left in folder.glob("0-job-*"):
            with suppress(OSError):
                left.rmdir()


def bounds(place: CgroupParent | None = None, **more: Any) -> dict[str, Any]:
    here = {"cgroup": list(place.folders), "scope": place.scope} if place else {}
    return {"bounds": {**here, **more}}


def locked(folder: Path, **more: Any) -> dict[str, Any]:
    return bounds(lock_folder=str(folder), gpus=[0], alone=True, **more)


def test_a_job_runs_only_when_nobody_else_holds_its_gpus_lock(run: Run, tmp_path: Path) -> None:
    held = locks.lock_gpus(tmp_path, [0], alone=False)
    assert isinstance(held, HeldLocks)

    attempt = run("/bin/sh", "-c", "echo ran", **locked(tmp_path))

    refused = attempt.result().refused
    assert refused is not None
    assert f"(pid {os.getpid()})" in refused
    assert attempt.look().started is None


def test_its_gpus_are_locked_while_it_runs_and_free_once_its_end_is_told(
    run: Run, tmp_path: Path
) -> None:
    attempt = run("/bin/sleep", "30", **locked(tmp_path))
    attempt.started()

    assert not isinstance(locks.lock_gpus(tmp_path, [0], alone=False), HeldLocks)
    attempt.stop()
    assert attempt.result().refused is None
    assert isinstance(locks.lock_gpus(tmp_path, [0], alone=True), HeldLocks)


def test_a_killed_runner_leaves_no_lock(run: Run, tmp_path: Path) -> None:
    attempt = run("/bin/sleep", "30", **locked(tmp_path))
    attempt.kill_runner()

    assert isinstance(locks.lock_gpus(tmp_path, [0], alone=True), HeldLocks)


def test_a_job_is_in_a_cgroup_of_its_own_which_goes_with_it(run: Run, place: CgroupParent) -> None:
    attempt = run("/bin/cat", "/proc/self/cgroup", **bounds(place))

    attempt.result()
    assert "0-job-1-1" in attempt.log()
    wait_for(lambda: not any((Path(f) / "0-job-1-1").exists() for f in place.folders))


def test_a_job_that_forks_without_end_is_stopped_at_its_limit(
    run: Run, place: CgroupParent
) -> None:
    if "pids" not in place.can:
        pytest.skip("no pids controller")
    forks = "for i in 1 2 3 4 5 6 7 8 9; do sleep 5 & done; echo all"

    attempt = run("/bin/sh", "-c", forks, grace_s=0.1, **bounds(place, pids=4))

    attempt.result()
    assert "fork" in attempt.log()
    assert "all" not in attempt.log()


def test_a_job_that_takes_more_memory_than_it_may_is_killed(run: Run, place: CgroupParent) -> None:
    if "memory" not in place.can:
        pytest.skip("no memory controller")
    takes = "head -c 200m /dev/zero | tail -c 200m | wc -c"

    attempt = run("/bin/sh", "-c", takes, **bounds(place, memory_bytes=32 * 1024**2))

    attempt.result()
    assert "209715200" not in attempt.log()


def test_a_process_above_its_limit_is_asked_to_save_its_work_and_ended(run: Run) -> None:
    takes = "x = bytearray(150 * 1024**2); import time; time.sleep(60)"

    attempt = run(
        sys.executable, "-c", takes, grace_s=0.2, **bounds(process_memory_bytes=64 * 1024**2)
    )

    assert attempt.result().stopped == "memory"
    assert "holds 0.1" in attempt.log()
    assert "exceeds its limit of 0.0625 GiB of host memory" in attempt.log()


def test_a_process_above_its_limit_is_ended_in_a_cgroup_that_allows_the_job_more(
    run: Run, place: CgroupParent
) -> None:
    if "memory" not in place.can:
        pytest.skip("no memory controller")
    takes = "x = bytearray(150 * 1024**2); import time; time.sleep(60)"
    mib = 1024**2

    attempt = run(
        sys.executable, "-c", takes, grace_s=0.2,
        **bounds(place, memory_bytes=2048 * mib, process_memory_bytes=64 * mib),
    )  # fmt: skip

    assert attempt.result().stopped == "memory"
    assert "exceeds its limit of 0.0625 GiB of host memory" in attempt.log()


def test_a_job_near_the_limit_of_its_cgroup_is_warned(run: Run, place: CgroupParent) -> None:
    if "memory" not in place.can:
        pytest.skip("no memory controller")
    takes = "x = bytearray(175 * 1024**2); import time; time.sleep(4)"

    attempt = run(sys.executable, "-c", takes, **bounds(place, memory_bytes=200 * 1024**2))

    assert attempt.result().exit_code == 0
    assert "[gpucoord: the job holds 0.1" in attempt.log()


@pytest.mark.parametrize("trial", limit_trials.TRIALS, ids=lambda trial: trial[0])
def test_each_limit_works_when_check_tries_it(place: CgroupParent, trial: Any) -> None:
    name, is_here, attempt = trial
    if not is_here(place):
        pytest.skip(f"no controller for {name}")

    assert attempt(place) == ""


def test_check_says_which_limit_the_kernel_does_not_apply(
    place: CgroupParent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cgroup, "limit", lambda *_, **__: None)
    monkeypatch.setattr(limit_trials, "hide", lambda *_: "")
    monkeypatch.setattr(limit_trials, "OPENS", "print('read')")

    problems = {trial.name for trial in limit_trials.trials(place) if trial.problem}

    # On a busy machine, a process gets little of a CPU without any limit.
    limited = {
        "memory": "memory of a job", "pids": "number of processes", "devices": "device files"
    }  # fmt: skip
    expected = {name for controller, name in limited.items() if controller in place.can}
    if landlock.version():
        expected.add("closed folders")
    assert problems - {"CPUs"} == expected


def test_a_job_gets_the_cpu_that_it_may_have(run: Run, place: CgroupParent) -> None:
    if "cpu" not in place.can:
        pytest.skip("no cpu controller")
    attempt = run("/bin/sh", "-c", SPIN, time_limit_s=1.5, grace_s=0.2, **bounds(place, cpus=0.2))

    cpu_s = attempt.result().cpu_s
    assert cpu_s is not None
    assert cpu_s < 0.6


def test_devices_that_are_not_the_jobs_can_not_be_opened(run: Run, place: CgroupParent) -> None:
    if not Path("/dev/full").exists() or os.geteuid() != 0:
        pytest.skip("only root can hide devices")
    reads = "head -c 1 /dev/full && echo seen; head -c 1 /dev/zero && echo other"

    attempt = run("/bin/sh", "-c", reads, **bounds(place, hidden=[[1, 7]]))

    attempt.result()
    assert "seen" not in attempt.log()
    assert "other" in attempt.log()


def test_version_2_hides_devices_by_a_program(run: Run, place: CgroupParent) -> None:
    v2 = [f for f in place.folders if (Path(f) / "cgroup.events").exists()]
    if not v2 or os.geteuid() != 0:
        pytest.skip("no version 2 hierarchy, or not root")
    reads = "head -c 1 /dev/full && echo seen; head -c 1 /dev/zero && echo other"

    attempt = run("/bin/sh", "-c", reads, **bounds(cgroup=v2, hidden=[[1, 9], [1, 7]]))

    attempt.result()
    assert "seen" not in attempt.log()
    assert "other" in attempt.log()


@pytest.mark.parametrize("freezer", [True, False], ids=["freezer", "signals"])
def test_a_capped_job_does_its_share_on_the_simulated_server(
    run: Run, place: CgroupParent, freezer: bool
) -> None:
    """Asked for 30 %: its GPU does 30 % of a job beside it that is not capped."""
    how = bounds(place if freezer else None, share_pct=30, period_s=0.8)
    pid = run("/bin/sh", "-c", "sleep 60", **how).started().pid
    probe = SimulatedProbe(gpus=8)
    since = timezone.now() - timedelta(minutes=5)
    claims = [
        claim("1", gpu_uuid=probe.scenario.uuids[7], leader_pid=pid, since=since),
        claim("2", gpu_uuid=probe.scenario.uuids[7], leader_pid=os.getpid(), since=since),
    ]
    probe.read(since, claims)
    free, watch = [], Stopwatch()
    capped = []
    for _ in range(4):
        # As the sampler asks: in step with the pauses, so that instants would not tell.
        time.sleep(0.8)
        sweep = probe.read(since + timedelta(minutes=4), claims)
        shares = {process.pid: process.sm_pct or 0.0 for process in sweep.processes}
        capped.append(shares[pid])
        free.append(shares[os.getpid()])
    probe.close()

    assert min(free) > 0
    # A process that waits for a core lets it run, or pause, for too long.
    slack = 0.1 + 0.3 * (1 - watch.seconds / watch.wall_s)
    assert abs(sum(capped) / sum(free) - 0.3) < slack


@pytest.mark.parametrize("freezer", [True, False], ids=["freezer", "signals"])
def test_a_job_that_pauses_hears_that_it_is_to_end(
    run: Run, place: CgroupParent, freezer: bool
) -> None:
    how = bounds(place if freezer else None, share_pct=5, period_s=40.0)
    says = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.01; done"
    attempt = run("/bin/sh", "-c", says, grace_s=8.0, **how)
    attempt.wait_for_log("ready")
    wait_for(lambda: is_paused(attempt.started().pid))

    watch = Stopwatch()
    attempt.stop()

    assert attempt.result().exit_code == 0
    assert watch.seconds < 7
    assert "bye" in attempt.log()


def test_nothing_escapes_the_kill_of_a_cgroup(run: Run, place: CgroupParent) -> None:
    """It gave up its session, its parent and the nonce in its environment."""
    escapes = "setsid env -i /bin/sh -c 'trap \"\" TERM; sleep 60; sleep 60' & sleep 0.2; echo left"
    attempt = run("/bin/sh", "-c", escapes, grace_s=0.1, **bounds(place))

    attempt.result()
    wait_for(lambda: not any((Path(f) / "0-job-1-1").exists() for f in place.folders))


def test_what_a_killed_runner_leaves_in_the_cgroup_can_be_ended(
    run: Run, place: CgroupParent
) -> None:
    hides = "setsid env -i /bin/sh -c 'sleep 60; sleep 60' & sleep 60"
    attempt = run("/bin/sh", "-c", hides, **bounds(place))
    attempt.kill_runner()

    attempt_files.end_confined(attempt.folder)

    assert not any((Path(f) / "0-job-1-1").exists() for f in place.folders)


def test_where_no_cgroup_can_be_made_the_job_runs_without(run: Run, tmp_path: Path) -> None:
    attempt = run("/bin/echo", "ran", **bounds(cgroup=[str(tmp_path / "none" / "at" / "all")]))

    assert attempt.result().exit_code == 0
    assert attempt.log() == "ran\n"


def test_folders_in_which_nobody_is_are_removed_and_others_stay(
    run: Run, place: CgroupParent
) -> None:
    attempt = run("/bin/sleep", "60", **bounds(place, instance=5))
    attempt.started()
    mine, theirs = (Cgroup.under(place.folders, f"{number}-job-9-9") for number in (5, 6))
    for left in (mine, theirs):
        left.make()

    cgroups.remove_stale(place, 5, time.time())

    assert not any(folder.exists() for folder in mine.folders)
    assert all(folder.exists() for folder in theirs.folders)
    assert all(Path(f, "5-job-1-1").exists() for f in place.folders)
    cgroups.remove_stale(place, 5, time.time() + 2 * cgroups.FORGOTTEN_S)
    assert not any(folder.exists() for folder in theirs.folders)
