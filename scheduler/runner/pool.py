"""Edge: the runner pool, a small process that keeps runners ready, so that jobs start quickly.

    pool -> guardians -> their runners

A ready runner reads the folder of its attempt from the socket of orders. When it has ended, its
guardian gets another one, unless enough are ready. Runners that wait, their guardians and the pool
end when the other side closes that socket. The pool may be killed at any time; no job is harmed.
Standard library only; started as `python -I -S -c "... pool.serve(FD)"`.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from scheduler.runner import launch
from scheduler.runner.guardian import RunnerState, become_guardian, fork_guarded
from scheduler.runner.run import run, take_over, warm_up

# Minimum time between replacements of runners that fail before their order.
PAUSE_S = 1.0
# How many runners wait after many jobs, and for how long all but one of them do.
MOST_READY, SPARE_S = 4, 20
# Between looks at orders that are left when the other side has closed the socket.
CLOSING_MS = 20
ORDER_BYTES = 8192
# From the pool to a guardian, with the socket of orders.
READY, SPARE = b"r", b"s"
# From a runner: it has its order. From a guardian: its runner has ended.
TAKEN, FREE = b"t", b"f"
FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


def serve(descriptor: int) -> None:
    """Keep runners ready for the orders that come by this socket."""
    # Children are reaped automatically.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    warm_up()
    # Pages without garbage collection stay shared with the children.
    gc.freeze()
    gc.disable()
    with socket.socket(fileno=descriptor) as orders:
        orders.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", SPARE_S, 0))
        Pool(orders).keep_ready()


class Pool:
    """The guardians by the sockets to them; the set of those whose runner waits for an order."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._guardians: dict[int, socket.socket] = {}
        self._ready: set[int] = set()
        self._poll = select.poll()
        # It reports when the other side has closed it, and no orders.
        self._poll.register(orders, 0)

    def keep_ready(self) -> None:
        """Returns when no more orders come and all have been taken."""
        timeout_ms = None
        while timeout_ms is None or self._has_orders():
            if not self._ready:
                self._add()
            for descriptor, _ in self._poll.poll(timeout_ms):
                if descriptor == self._orders.fileno():
                    self._poll.unregister(descriptor)
                    timeout_ms = CLOSING_MS
                else:
                    self._hear(self._guardians[descriptor])

    def _has_orders(self) -> bool:
        with suppress(BlockingIOError, ConnectionResetError):
            return bool(self._orders.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        return False

    def _add(self) -> None:
        ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            _guard(peer)
        peer.close()
        self._guardians[ours.fileno()] = ours
        self._poll.register(ours, select.POLLIN)
        self._request(ours)

    def _request(self, guardian: socket.socket) -> None:
        """Have it fork a runner."""
        kind = SPARE if self._ready else READY
        with suppress(OSError):
            # If it has just died, its socket tells so.
            socket.send_fds(guardian, [kind], [self._orders.fileno()], FLAGS)
        self._ready.add(guardian.fileno())

    def _hear(self, guardian: socket.socket) -> None:
        descriptor, message = guardian.fileno(), b""
        with suppress(OSError):
            message = guardian.recv(1, socket.MSG_DONTWAIT)
        if message == TAKEN:
            self._ready.discard(descriptor)
        elif message == FREE and len(self._ready) < MOST_READY:
            self._request(guardian)
        else:
            # It has ended, or does so now.
            self._ready.discard(descriptor)
            self._poll.unregister(descriptor)
            self._guardians.pop(descriptor).close()


def _guard(pool: socket.socket) -> NoReturn:
    """The guardian, and below it one runner after another."""
    try:
        become_guardian([pool.fileno()])
        launch.ignored_signals()
        while (kind := _next(pool)) is not None:
            forked = fork_guarded()
            if not isinstance(forked, RunnerState):
                _wait_and_run(*kind, pool, *forked)
            os.close(kind[1])
            if not forked.done:
                take_over(forked)
                break
            if not forked.forget():
                break
            pool.send(FREE, FLAGS)
    except BaseException:
        os._exit(1)
    os._exit(0)


def _next(pool: socket.socket) -> tuple[bytes, int] | None:
    """The next request for a runner, with the socket of orders; None: there is none."""
    kind, descriptors, _, _ = socket.recv_fds(pool, 1, 1)
    return (kind, descriptors[0]) if kind and descriptors else None


def _wait_and_run(
    kind: bytes, descriptor: int, pool: socket.socket, channel: socket.socket, guardian: int
) -> NoReturn:
    try:
        orders = socket.socket(fileno=descriptor)
        order = _order(orders, is_spare=kind == SPARE)
        if order:
            with suppress(OSError):
                # RunnerStarter counts the orders that are taken.
                orders.send(b".", FLAGS)
        with suppress(OSError):
            pool.send(TAKEN, FLAGS)
    except BaseException:
        time.sleep(PAUSE_S)
        os._exit(1)
    try:
        if order:
            run(Path(os.fsdecode(order)), channel, guardian)
    finally:
        os._exit(0)


def _order(orders: socket.socket, *, is_spare: bool) -> bytes:
    """The folder of an attempt; b"" = no more come, or a spare runner has waited long enough."""
    while True:
        try:
            return orders.recv(ORDER_BYTES)
        except BlockingIOError:
            if is_spare:
                return b""
