"""Edge: a small process, kept ready, that forks a runner per job, so that a start is quick.

It reads the folders of attempts from its socket and ends when the other side closes. Runners
are no longer its children once they run: it may die at any time without harm to a job.
Standard library only; started as `python -I -S -c "... nursery.serve(FD)"`.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from scheduler.runner.run import run
from scheduler.runner.watch import HEARD


def serve(descriptor: int) -> None:
    """Fork a runner for each folder that comes."""
    gc.freeze()
    with socket.socket(fileno=descriptor) as orders:
        while order := orders.recv(8192):
            _fork_runner(Path(os.fsdecode(order)))


def _fork_runner(folder: Path) -> None:
    # A request to stop that comes before the runner listens for it must wait, not kill.
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    between = os.fork()
    if between == 0:
        _fork_again(folder)
    os.waitpid(between, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)


def _fork_again(folder: Path) -> NoReturn:
    """The process between ends at once, so that the runner belongs to nobody here."""
    try:
        if os.fork() == 0:
            run(folder)
    except BaseException:
        traceback.print_exc(file=sys.stderr)
        os._exit(1)
    os._exit(0)
