"""A job survives the death of its runner, or of the guardian above it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from scheduler.runner.confine import locks
from scheduler.runner.confine.locks import HeldLocks, LockRefused
from scheduler.runner.launch import RunnerStarter
from tests.processes.attempts import RunningAttempt, is_running, wait_for

pytestmark = pytest.mark.processes
Run = Callable[..., RunningAttempt]
SHELL = ("/bin/sh", "-c")


def kill_runner(attempt: RunningAttempt) -> None:
    os.kill(attempt.started().runner_pid, signal.SIGKILL)
    wait_for(lambda: not is_running(attempt.started().runner_pid))


def test_a_job_goes_on_after_its_runner_was_killed(run: Run) -> None:
    attempt = run(*SHELL, "echo began; sleep 0.5; echo ended; exit 7")
    attempt.wait_for_log("began")
    kill_runner(attempt)

    result = attempt.result()
    assert (result.exit_code, result.stopped, result.problem) == (7, None, None)
    assert attempt.log() == "began\nended\n"


def test_a_job_goes_on_after_its_guardian_was_killed(run: Run) -> None:
    attempt = run(*SHELL, "echo began; (sleep 0.2; echo child) & sleep 0.5; exit 7")
    attempt.wait_for_log("began")
    os.kill(attempt.started().guardian_pid, signal.SIGKILL)

    result = attempt.result()
    assert (result.exit_code, result.problem) == (7, None)
    assert attempt.log() == "began\nchild\n"


def test_the_exit_code_survives_a_runner_that_was_killed_after_the_end(run: Run) -> None:
    """The runner is stopped before the job ends, so it can't have written the result."""
    attempt = run(*SHELL, "echo began; sleep 0.3; exit 9")
    attempt.wait_for_log("began")
    os.kill(attempt.started().runner_pid, signal.SIGSTOP)
    wait_for(lambda: not is_running(attempt.started().pid))
    assert attempt.look().result is None
    kill_runner(attempt)

    assert attempt.result().exit_code == 9


def test_the_guardian_is_the_runner_after_its_death(run: Run) -> None:
    attempt = run(*SHELL, "echo began; exec sleep 60")
    attempt.wait_for_log("began")
    kill_runner(attempt)

    assert attempt.look().runner_alive
    assert attempt.look().runner == (
        attempt.started().guardian_pid,
        attempt.started().guardian_start_ticks,
    )


def test_a_cancel_works_after_the_death_of_the_runner(run: Run) -> None:
    attempt = run(
        *SHELL, "trap 'echo saved; exit 3' TERM; echo began; while :; do sleep 0.05; done"
    )
    attempt.wait_for_log("began")
    kill_runner(attempt)
    attempt.stop()

    result = attempt.result()
    assert (result.stopped, result.exit_code) == ("asked", 3)
    assert attempt.log().endswith("saved\n")


def test_a_cancel_that_had_begun_goes_on_after_the_death_of_the_runner(run: Run) -> None:
    stubborn = "trap 'echo told' TERM; echo began; while :; do sleep 0.05; done"
    attempt = run(*SHELL, stubborn, grace_s=1.5)
    attempt.wait_for_log("began")
    attempt.stop()
    attempt.wait_for_log("told")
    kill_runner(attempt)

    result = attempt.result()
    assert (result.stopped, result.signal) == ("asked", signal.SIGKILL)


def test_the_time_limit_holds_after_the_death_of_the_runner(run: Run) -> None:
    attempt = run(*SHELL, "echo began; exec sleep 60", time_limit_s=1.0)
    attempt.wait_for_log("began")
    kill_runner(attempt)

    assert attempt.result().stopped == "time_limit"


def test_the_gpu_stays_locked_until_the_end(run: Run, tmp_path: Path) -> None:
    bounds = {"lock_folder": str(tmp_path), "gpus": [0], "alone": True, "instance": 5}
    attempt = run(*SHELL, "echo began; sleep 0.7", bounds=bounds)
    attempt.wait_for_log("began")
    kill_runner(attempt)
    assert isinstance(locks.lock_gpus(tmp_path, [0], alone=True), LockRefused)

    attempt.result()
    locked = locks.lock_gpus(tmp_path, [0], alone=True)
    assert isinstance(locked, HeldLocks)
    locked.release()


def test_the_gpu_is_unlocked_when_the_result_is_there(run: Run, tmp_path: Path) -> None:
    """The guardian has the lock files open, too."""
    bounds = {"lock_folder": str(tmp_path), "gpus": [0], "alone": True, "instance": 5}
    gate = tmp_path / "gate"
    attempt = run(*SHELL, f"until [ -e {gate} ]; do sleep 0.02; done", bounds=bounds)
    guardian = attempt.started().guardian_pid
    os.kill(guardian, 0)
    gate.touch()
    attempt.result()

    locked = locks.lock_gpus(tmp_path, [0], alone=True, instance=6)
    assert isinstance(locked, HeldLocks)
    locked.release()
    wait_for(lambda: not is_running(guardian))


HELD = """
import os, pathlib, signal
from scheduler.runner.guardian import GuardedJob, RunnerState, fork_runner
from scheduler.runner.launch import Child, fork_job
from scheduler.runner.spec import Spec
out = os.dup(1)
forked = fork_runner()
if not isinstance(forked, RunnerState):
    spec = Spec(job_id=1, attempt=1, nonce="n", argv=["/bin/echo"], cwd="/", env={}, account="")
    child = fork_job(spec, out, pathlib.Path())
    GuardedJob(child.pid, forked[0]).starts("/", 1.0, [child.errors, out])
    os.kill(os.getpid(), signal.SIGKILL)
os.write(forked.files[1], f"{Child(forked.leader, forked.files[0]).failure()}".encode())
"""


def test_a_guardian_knows_that_its_job_was_never_let_go() -> None:
    program = [sys.executable, "-c", HELD]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout == "('held', 0)", done.stderr


LATE = """
import os, signal, time
from scheduler.runner import guardian
become = guardian._become_guardian
def become_late(channel):
    time.sleep(0.3)
    become(channel)
guardian._become_guardian = become_late
forked = guardian.fork_runner()
if not isinstance(forked, guardian.RunnerState):
    if os.fork() == 0:
        time.sleep(0.6)
        os._exit(5)
    os.kill(os.getpid(), signal.SIGKILL)
os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_guardian_that_is_late_takes_over_the_job_of_a_runner_killed_at_once() -> None:
    program = [sys.executable, "-c", LATE]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 5, done.stderr


COLLECTED = """
import os, sys
from scheduler.runner import guardian
from scheduler.runner.confine.confinement import Confinement
from scheduler.runner.spec import Spec
spec = Spec(job_id=1, attempt=1, nonce="n", argv=["true"], cwd="/", env={}, account="")
watch = guardian.Watch(
    guardian.GuardedJob(999_999), time_limit_s=None, grace_s=1.0, pass_on_yield=lambda: None,
    confinement=Confinement(spec),
)
try:
    watch.run()
except guardian.JobLostError:
    print("lost")
"""


def test_a_watch_without_any_child_waits_for_nothing() -> None:
    program = [sys.executable, "-c", COLLECTED]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout == "lost\n", done.stderr


def storm(
    spawner: RunnerStarter, folder: Path, jobs: int, seed: int
) -> list[tuple[int, int | None]]:
    """Kill the runner or the guardian of each job at a random moment.

    Returns the exit code of each job as it was and as it was recorded.
    """
    chance = random.Random(seed)
    attempts = []
    for number in range(jobs):
        line = f"echo began; sleep {chance.uniform(0.05, 0.8):.2f}; exit {number % 100}"
        place = folder / "jobs" / str(number) / "1"
        attempts.append((number % 100, RunningAttempt(spawner, place, *SHELL, line)))
    for _, attempt in attempts:
        attempt.wait_for_log("began")
        started = attempt.started()
        pid = chance.choice([started.runner_pid, started.guardian_pid])
        time.sleep(chance.uniform(0.0, 0.1))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [(code, attempt.result(within_s=30).exit_code) for code, attempt in attempts]


def test_a_small_storm_of_kills_loses_no_exit_code(spawner: RunnerStarter, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    codes = storm(spawner, tmp_path, 12, seed=1)
    assert [(code, code) for code, _ in codes] == codes


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_storm_of_kills_loses_no_exit_code(spawner: RunnerStarter, tmp_path: Path) -> None:
    for seed in range(10):
        (tmp_path / str(seed) / "jobs").mkdir(parents=True)
        codes = storm(spawner, tmp_path / str(seed), 40, seed)
        assert [(code, code) for code, _ in codes] == codes
