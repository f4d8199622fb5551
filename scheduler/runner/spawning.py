"""Edge: start runners, through a nursery that is kept ready and replaced when it dies."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The standard library first: what else is installed beside us must not stand in for it.
PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from scheduler.runner import nursery; nursery.serve(int(sys.argv[2]))"
)
SEND_TIMEOUT_S = 1.0
CLOSE_TIMEOUT_S = 3.0


class Spawner:
    """Owns one nursery. Use and close it in the process that made it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket | None = None

    def open(self) -> None:
        """Start the nursery, so that the first job need not wait for it."""
        if self._orders is None:
            self._start()

    def spawn(self, folder: Path) -> bool:
        """Ask for a runner; False when that could not even be asked. Ask again if none claims."""
        self.open()
        if self._send(folder):
            return True
        # Dead, or so stuck that it takes no more orders.
        self._end(patience_s=0)
        self._start()
        return self._send(folder)

    def close(self) -> None:
        """Let the nursery do what it was told, and end; the runners stay."""
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

    def _send(self, folder: Path) -> bool:
        with suppress(OSError):
            if self._orders is not None:
                self._orders.send(os.fsencode(folder))
                return True
        return False

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Its queue is short: many jobs at once make us wait for it, a little.
        ours.settimeout(SEND_TIMEOUT_S)
        with theirs:
            self._process = subprocess.Popen(
                [interpreter(), "-I", "-S", "-c", PROGRAM, str(ROOT), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                cwd="/",
                env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
                start_new_session=True,
            )
        self._orders = ours


def interpreter() -> str:
    """The real one: a virtual environment's needs longer to find its library."""
    return getattr(sys, "_base_executable", None) or sys.executable
