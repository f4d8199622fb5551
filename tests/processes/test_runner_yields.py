"""A real runner passes a request to yield on to a real job."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.runner import attempt_files
from scheduler.runner.files import YieldRequestFile
from tests.processes.attempts import NONCE, RunningAttempt, wait_for

pytestmark = pytest.mark.processes
Run = Callable[..., RunningAttempt]
POLLS = "echo ready; while [ ! -e $GPUCOORD_YIELD_FILE ]; do sleep 0.02; done; exit 85"
LISTENS = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(85))
print("ready", flush=True)
time.sleep(60)
"""


class Yielding:
    """An attempt that can be asked to yield, as the executor does it."""

    def __init__(self, run: Run, folder: Path, *argv: str, **changes: object) -> None:
        self.file = folder / "1.yield"
        env = {"GPUCOORD_YIELD_FILE": str(self.file)}
        self.attempt = run(*argv, yield_file=str(self.file), env=env, **changes)
        self.attempt.wait_for_log("ready")

    def ask(self, left_s: float, reason: str = "Job 9 needs its GPU.") -> float:
        self.deadline = time.time() + left_s
        request = YieldRequestFile(reason, self.deadline)
        assert attempt_files.request_yield(self.attempt.folder, self.attempt.look(), NONCE, request)
        return self.deadline


@pytest.fixture
def start(run: Run, tmp_path: Path) -> Callable[..., Yielding]:
    return lambda *argv, **changes: Yielding(run, tmp_path, *argv, **changes)


Start = Callable[..., Yielding]


def test_a_job_that_looks_for_its_file_leaves_by_itself(start: Start) -> None:
    job = start("/bin/sh", "-c", POLLS)
    deadline = job.ask(60)

    result = job.attempt.result()
    assert (result.exit_code, result.stopped, result.yielded) == (85, None, True)
    assert json.loads(job.file.read_text()) == {
        "reason": "Job 9 needs its GPU.",
        "deadline": deadline,
    }


def test_it_hears_the_signal_that_it_declared(start: Start) -> None:
    job = start(sys.executable, "-c", LISTENS, yield_signal="SIGUSR1")
    job.ask(60)

    assert job.attempt.result().exit_code == 85


def test_a_shell_that_does_not_listen_survives_the_signal_of_its_program(start: Start) -> None:
    line = f"{sys.executable} -c '{LISTENS}'; code=$?; echo saved; exit $code"
    job = start("/bin/sh", "-c", line, yield_signal="SIGUSR1")
    job.ask(60)

    assert job.attempt.result().exit_code == 85
    assert job.attempt.log() == "ready\nsaved\n"


def test_nobody_is_sent_a_signal_that_was_not_declared(start: Start) -> None:
    job = start("/bin/sh", "-c", "trap 'echo USR1' USR1; echo ready; " + POLLS)
    job.ask(60)

    assert job.attempt.result().exit_code == 85
    assert "USR1" not in job.attempt.log()


def test_who_does_not_leave_gets_sigterm_a_grace_before_the_deadline(start: Start) -> None:
    line = "trap 'exit 85' TERM; echo ready; while :; do sleep 0.02; done"
    job = start("/bin/sh", "-c", line, grace_s=1.2)
    asked_at = time.time()
    deadline = job.ask(2.4)

    result = job.attempt.result()
    assert (result.exit_code, result.stopped, result.yielded) == (85, "yield", True)
    assert asked_at + 1.1 < result.ended_at < deadline


def test_half_of_a_short_time_is_for_leaving_by_itself(start: Start) -> None:
    job = start("/bin/sh", "-c", POLLS, grace_s=60.0)
    job.ask(8)

    result = job.attempt.result()
    assert (result.exit_code, result.stopped) == (85, None)


def test_who_ignores_sigterm_too_is_killed_at_the_deadline(start: Start) -> None:
    line = "trap '' TERM; echo ready; while :; do sleep 0.02; done"
    job = start("/bin/sh", "-c", line, grace_s=0.2)
    deadline = job.ask(1.3)

    result = job.attempt.result()
    assert (result.signal, result.stopped) == (signal.SIGKILL, "yield")
    assert deadline - 0.1 < result.ended_at < deadline + 5


def test_an_earlier_deadline_counts_and_asking_again_changes_nothing(start: Start) -> None:
    line = "trap 'echo term' TERM; echo ready; while :; do sleep 0.02; done"
    job = start("/bin/sh", "-c", line, grace_s=1.2)
    job.ask(60)
    wait_for(job.file.exists)
    job.ask(1.5, "The owner of GPU 0 is there.")
    for _ in range(3):
        attempt_files.request_yield(
            job.attempt.folder,
            job.attempt.look(),
            NONCE,
            YieldRequestFile("The owner of GPU 0 is there.", job.deadline),
        )

    assert job.attempt.result().signal == signal.SIGKILL
    assert job.attempt.log().count("term") == 1
    assert json.loads(job.file.read_text())["reason"] == "The owner of GPU 0 is there."


def test_who_may_stay_goes_on_and_can_be_asked_again(start: Start, tmp_path: Path) -> None:
    line = "trap 'exit 3' TERM; echo ready; while [ ! -e $GO ]; do sleep 0.02; done; echo on; "
    go = str(tmp_path / "go")
    job = start("/bin/sh", "-c", line.replace("$GO", go) + POLLS, grace_s=0.1)
    job.ask(1.0)
    wait_for(job.file.exists)
    wait_for(
        lambda: not attempt_files.withdraw_request(job.attempt.folder, job.attempt.look(), NONCE)
    )
    assert not job.file.exists()
    time.sleep(1.1)
    Path(go).touch()
    job.attempt.wait_for_log("on")
    job.ask(60)

    result = job.attempt.result()
    assert (result.exit_code, result.stopped, result.yielded) == (85, None, True)


def test_a_deadline_that_is_over_still_leaves_time_between_the_signals(start: Start) -> None:
    job = start("/bin/sh", "-c", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.02; done")
    job.ask(-5)

    assert job.attempt.result().exit_code == 3


def test_a_request_of_another_attempt_is_not_heard(start: Start) -> None:
    job = start("/bin/sh", "-c", "echo ready; sleep 0.5; exit 4")
    body = {"nonce": "of another", "reason": "x", "deadline": 0}
    (job.attempt.folder / attempt_files.REQUEST_FILE).write_text(json.dumps(body))
    look = job.attempt.look()
    assert look.claimed is not None
    assert attempt_files.process_tree.signal_one(
        look.claimed.pid, look.claimed.start_ticks, attempt_files.YIELD_SIGNAL
    )

    result = job.attempt.result()
    assert (result.exit_code, result.yielded) == (4, False)


def test_a_job_whose_file_cannot_be_written_still_leaves_in_time(run: Run, tmp_path: Path) -> None:
    line = "trap 'exit 85' TERM; echo ready; while :; do sleep 0.02; done"
    attempt = run("/bin/sh", "-c", line, yield_file=str(tmp_path / "no" / "such"), grace_s=1.0)
    attempt.wait_for_log("ready")
    assert attempt_files.request_yield(
        attempt.folder, attempt.look(), NONCE, YieldRequestFile("x", time.time() + 1)
    )

    assert (attempt.result().exit_code, attempt.result().yielded) == (85, True)
