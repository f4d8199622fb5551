"""Edge: start runners through a runner pool, which is replaced when it dies."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The standard library comes first, so that no installed package replaces one of its modules.
PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from scheduler.runner import pool; pool.serve(int(sys.argv[2]))"
)
SEND_TIMEOUT_S = 1.0
# A pool that takes no order for this time hangs. An order takes some tens of milliseconds.
STUCK_S = 1.5
CLOSE_TIMEOUT_S = 3.0


class RunnerStarter:
    """Owns one runner pool. Use and close it in the process that created it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket | None = None
        # Orders that no runner has taken, and when one was last taken or the first came.
        self._waiting, self._progress_at = 0, 0.0

    def open(self) -> None:
        """Start the pool, so that the first job does not wait for it."""
        if self._orders is None:
            self._start()

    def spawn(self, folder: Path) -> bool:
        """Request a runner; False: the request failed. Repeat it if no runner claims it."""
        self.open()
        if not self._is_stuck() and self._send(folder):
            return True
        # Dead, or so stuck that it takes no more orders.
        self._end(patience_s=0)
        self._start()
        return self._send(folder)

    def close(self) -> None:
        """Let the pool finish its orders and end; the runners stay."""
        self._end(CLOSE_TIMEOUT_S)

    def _end(self, patience_s: float) -> None:
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        if self._process is not None:
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _is_stuck(self) -> bool:
        """Whether orders wait, and none of them has been taken for STUCK_S."""
        with suppress(OSError):
            while (orders := self._orders) and select.select([orders], [], [], 0)[0]:
                if not orders.recv(1):
                    break
                self._waiting -= 1
                self._progress_at = time.monotonic()
        return self._waiting > 0 and time.monotonic() - self._progress_at >= STUCK_S

    def _send(self, folder: Path) -> bool:
        with suppress(OSError):
            if self._orders is not None:
                self._orders.send(os.fsencode(folder))
                if self._waiting == 0:
                    self._progress_at = time.monotonic()
                self._waiting += 1
                return True
        return False

    def _start(self) -> None:
        ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Its queue is short: many jobs at once make us wait for it, a little.
        ours.settimeout(SEND_TIMEOUT_S)
        with peer:
            self._process = subprocess.Popen(
                [interpreter(), "-I", "-S", "-c", PROGRAM, str(ROOT), str(peer.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(peer.fileno(),),
                cwd="/",
                env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
                start_new_session=True,
            )
        self._orders = ours
        self._waiting, self._progress_at = 0, time.monotonic()


def interpreter() -> str:
    """The real one: a virtual environment's needs longer to find its library."""
    return getattr(sys, "_base_executable", None) or sys.executable
