"""Edge: a small process that keeps a runner ready, so that a start is quick.

The folders of attempts come through its socket, each to the runner that is ready; when the other
side closes, both end. It may die at any time without harm to a job.
Standard library only; started as `python -I -S -c "... nursery.serve(FD)"`.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from pathlib import Path
from typing import NoReturn

from scheduler.runner.run import detach, rehearse, run

# Whoever can't even wait for its order is not replaced more often than that.
PAUSE_S = 1.0


def serve(descriptor: int) -> None:
    """A runner is forked ahead for each folder that comes."""
    # They leave nothing behind here when they end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    with socket.socket(fileno=descriptor) as orders:
        while not _is_closed(orders):
            _keep_ready(orders)


def _is_closed(orders: socket.socket) -> bool:
    try:
        return not orders.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def _keep_ready(orders: socket.socket) -> None:
    """Returns when a runner has its order, and with it has closed all else; or when it died."""
    closed, kept = os.pipe()
    if os.fork() == 0:
        _wait_and_run(orders)
    os.close(kept)
    os.read(closed, 1)
    os.close(closed)


def _wait_and_run(orders: socket.socket) -> NoReturn:
    try:
        detach()
        rehearse()
        order = orders.recv(8192)
    except BaseException:
        time.sleep(PAUSE_S)
        os._exit(1)
    try:
        if order:
            run(Path(os.fsdecode(order)))
    finally:
        os._exit(0)
