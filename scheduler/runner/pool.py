"""Edge: the runner pool, a small process that keeps one runner ready, so that jobs start quickly.

The ready runner reads the folder of its attempt from the socket. Both end when the other side
closes it. The pool may be killed at any time without harm to a job.
Standard library only; started as `python -I -S -c "... pool.serve(FD)"`.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from scheduler.runner.guardian import RunnerState, fork_runner
from scheduler.runner.run import detach, run, take_over, warm_up

# Minimum time between replacements of runners that fail before their order.
PAUSE_S = 1.0


def serve(descriptor: int) -> None:
    """A runner is forked ahead for each folder that comes."""
    # Children are reaped automatically.
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
    closed, write_end = os.pipe()
    if os.fork() == 0:
        _guard(orders)
    os.close(write_end)
    os.read(closed, 1)
    os.close(closed)


def _guard(orders: socket.socket) -> NoReturn:
    """The guardian, and below it the runner."""
    try:
        forked = fork_runner()
        if isinstance(forked, RunnerState):
            take_over(forked)
            os._exit(0)
    except BaseException:
        os._exit(1)
    _wait_and_run(orders, *forked)


def _wait_and_run(orders: socket.socket, channel: socket.socket, guardian: int) -> NoReturn:
    try:
        detach()
        warm_up()
        order = orders.recv(8192)
        with suppress(OSError):
            # It is taken: see Spawner.
            orders.send(b".", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except BaseException:
        time.sleep(PAUSE_S)
        os._exit(1)
    try:
        if order:
            run(Path(os.fsdecode(order)), channel, guardian)
    finally:
        os._exit(0)
