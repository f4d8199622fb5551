"""Edge: the runner as the batch script of an engine, on the node that the engine chose.

    batch script -> guardian -> runner -> the job's first process

It runs as the job's account. The folder of the attempt belongs to that account. The exit code of
the script is that of the job, so that the engine's own records are right, too.
Standard library only; started as `python -I -S -c "... batch.main(FOLDER)"`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from scheduler.runner import attempt_files, files, process_tree
from scheduler.runner.files import YieldRequestFile
from scheduler.runner.guardian import PR_SET_CHILD_SUBREAPER, RunnerState, fork_runner
from scheduler.runner.run import EngineEnvironment, detach, run, take_over

# Variables by which Slurm says which GPUs the job has; everything of Slurm itself is passed on too.
OF_ENGINE = (
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "TMPDIR",
)
PREFIXES = ("SLURM_", "SLURMD_")
# Its name of this task.
REF, LONGEST_REF = "SLURM_JOB_ID", 64
PASSED_ON = (signal.SIGTERM, signal.SIGUSR1)
YIELD_TEXT = "Slurm ends this job soon."
# The job was not started: the attempt had been claimed before.
NOT_STARTED = 0
NO_SPEC, UNKNOWN_END = 125, 1


def main(name: str) -> NoReturn:
    """Run the attempt of this folder unless it has been claimed; ends with the job's exit code."""
    folder = Path(name)
    body = files.read_json(folder / files.SPEC)
    if body is None:
        sys.stderr.write(f"gpucoord: {folder / files.SPEC} can't be read on this node.\n")
        os._exit(NO_SPEC)
    if (folder / files.CLAIMED).exists():
        os._exit(NOT_STARTED)
    signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD})
    # A runner without its guardian becomes a child of this process.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.fork() == 0:
        _guard(folder)
    _wait(folder, str(body["nonce"]), float(body.get("grace_s", 0)))
    os._exit(_exit_code(folder, str(body["nonce"])))


def engine_environment(env: Mapping[str, str]) -> EngineEnvironment:
    """The variables of the engine among these, for the job.

    They are not written to spec.json: a second task of the same attempt has other GPUs.
    """
    of_engine = {
        name: value for name, value in env.items() if name in OF_ENGINE or name.startswith(PREFIXES)
    }
    return EngineEnvironment(env.get(REF, "")[:LONGEST_REF], of_engine)


def _guard(folder: Path) -> NoReturn:
    try:
        forked = fork_runner()
        if isinstance(forked, RunnerState):
            take_over(forked)
        else:
            detach()
            run(folder, *forked, engine_environment(os.environ))
    finally:
        os._exit(0)


def _wait(folder: Path, nonce: str, grace_s: float) -> None:
    """Until the guardian and the runner have ended; pass on the signals of the engine."""
    while not _is_childless():
        heard = signal.sigtimedwait({*PASSED_ON, signal.SIGCHLD}, 1.0)
        if heard is None:
            continue
        observed = attempt_files.read_attempt(folder, nonce)
        if observed.claimed is None or observed.claimed.engine_ref != os.environ.get(REF, ""):
            # The job runs in another task of the engine; these signals are not for it.
            continue
        if heard.si_signo == signal.SIGCHLD:
            if (
                observed.started is not None
                and not observed.runner_alive
                and observed.result is None
            ):
                # Without its runner and guardian, the job's exit code is unknown.
                left = process_tree.descendants(os.getpid())
                process_tree.signal_all(left, signal.SIGKILL)
        elif heard.si_signo == signal.SIGUSR1:
            request = attempt_files.read(folder, nonce) or YieldRequestFile(
                YIELD_TEXT, time.time() + grace_s
            )
            attempt_files.request_yield(folder, observed, nonce, request)
        else:
            attempt_files.ask_to_stop(observed)


def _is_childless() -> bool:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return False
    return True


def _exit_code(folder: Path, nonce: str) -> int:
    result = attempt_files.read_attempt(folder, nonce).result
    if result is None or result.refused is not None:
        return UNKNOWN_END
    if result.signal is not None:
        return 128 + result.signal
    return UNKNOWN_END if result.exit_code is None else result.exit_code


def give_up(name: str, nonce: str) -> NoReturn:
    """Claim the attempt so that no runner can; ends with 0, or with 1 when a runner was faster.

    The service runs this as the job's account: root writes nothing in a folder of a user.
    """
    os.umask(0o077)
    folder = Path(name)
    is_mine = files.claim(folder, attempt_files.own_claim(nonce, runner=False).to_json())
    if is_mine:
        files.drop_environment(folder)
    os._exit(0 if is_mine else 1)
