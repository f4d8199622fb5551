"""Leaves nothing of a demo behind, however it ends: its jobs are killed, its folder removed.

Standard library and the runner's file names only: this also runs in a small process of its own,
which waits for a demo that was killed.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

from scheduler.runner import family, files

PATIENCE_S = 5.0
PAUSE_S = 0.05


def watch_over(folder: Path) -> None:
    """Fork a process that clears up after this one has ended in a way that let it do nothing."""
    parent = os.pidfd_open(os.getpid())
    if os.fork():
        os.close(parent)
        return
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _let_go_of_streams()
        select.select([parent], [], [])
        clear_up(folder)
    finally:
        os._exit(0)


def _let_go_of_streams() -> None:
    """Whoever reads the demo's output through a pipe must see its end."""
    sys.stdout.flush()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def clear_up(folder: Path) -> None:
    """End every job that ran from this folder, then remove it.

    What is left of a killed service may still write there for a moment: so again, until it is gone.
    """
    deadline = time.monotonic() + PATIENCE_S
    while _end_jobs(folder / "data") and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
    shutil.rmtree(folder, ignore_errors=True)
    deadline = time.monotonic() + PATIENCE_S
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
        _end_jobs(folder / "data")
        shutil.rmtree(folder, ignore_errors=True)


def _end_jobs(data: Path) -> int:
    """SIGKILL what is left of the jobs, runners first: they would only report. How many."""
    found = 0
    for attempt in (data / "jobs").glob("*/*"):
        started = files.read_json(attempt / files.STARTED)
        if started is None or (attempt / files.RESULT).exists():
            continue
        runner = started["runner_pid"], started["runner_start_ticks"]
        found += family.signal_one(*runner, signal.SIGKILL)
        left = family.orphans(started["pid"], started["start_ticks"], started["nonce"])
        family.signal_all(left, signal.SIGKILL)
        found += len(left)
    return found
