"""Edge: a small detached process that stops and continues another one in a duty cycle.

The permit is a file with a deadline that gpucoord renews every few seconds; without it the target
continues at once. The pacer and its keeper watch each other: if one is killed, the other lets the
target continue. Standard library only.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from scheduler.runner import process_tree

LOOK_S = 0.5


def grant_permit(path: Path, seconds: float) -> None:
    """Extend the permit by this time from now, by the clock that all processes share."""
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(f"{time.monotonic() + seconds:.3f}")
    draft.replace(path)


def is_permitted(path: str) -> bool:
    with suppress(OSError, ValueError):
        return time.monotonic() < float(Path(path).read_text())
    return False


def serve(arguments: Sequence[str]) -> None:
    """PERMIT PID START_TICKS RUN_S STOP_S: the keeper; it forks the pacer."""
    os.chdir("/")
    path, pid, ticks = arguments[0], int(arguments[1]), int(arguments[2])
    watched, lifeline = os.pipe()
    pacer = os.fork()
    if pacer == 0:
        os.close(lifeline)
        try:
            _pace(path, pid, ticks, float(arguments[3]), float(arguments[4]), watched)
        finally:
            os._exit(0)
    os.close(watched)
    os.waitpid(pacer, 0)
    process_tree.signal_one(pid, ticks, signal.SIGCONT)


def _pace(path: str, pid: int, ticks: int, run_s: float, stop_s: float, keeper: int) -> None:
    try:
        target = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    # The descriptor refers to one process, so the identity is compared after it was opened.
    if process_tree.start_ticks_of(pid) != ticks:
        return
    ends = select.poll()
    ends.register(keeper, select.POLLIN)
    ends.register(target, select.POLLIN)

    def rests(seconds: float) -> bool:
        """Wait; False: the permit, the keeper or the target is gone."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if ends.poll(min(left, LOOK_S) * 1000) or not is_permitted(path):
                return False
        return is_permitted(path)

    goes_on = rests(run_s)
    while goes_on:
        # A process that its owner stopped stays stopped.
        if not _is_stopped(pid):
            try:
                signal.pidfd_send_signal(target, signal.SIGSTOP)
                goes_on = rests(stop_s)
            finally:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(target, signal.SIGCONT)
        goes_on = goes_on and rests(run_s)


def _is_stopped(pid: int) -> bool:
    with suppress(OSError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return stat.rpartition(b")")[2].split()[0] == b"T"
    return False
