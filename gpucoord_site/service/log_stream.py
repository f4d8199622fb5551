"""The stream of log lines: a write never blocks or raises; what cannot be written is dropped.

stderr may be a pipe whose reader has stopped or ended, or a file on a full disk. No other work may
wait for it, and a fault of the log must not be logged.
"""

from __future__ import annotations

import io
import logging
import os
import select
import socket
import stat
import threading
import time

# A longer write to a pipe may wait although poll() says that it is ready.
AT_ONCE = select.PIPE_BUF
# Maximum total wait for a slow reader, per line.
PATIENCE_S = 0.02
STOPPED = "its reader does not read"
LOST = "\n{count} log lines were lost: {why}.\n"


class LogStream(io.TextIOBase):
    """Writes to a file descriptor as `LogHandler` and sys.stderr do."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._own: int | None = None
        self._opened_by = 0
        self._lost = 0
        self._why = ""
        self._is_in_line = False
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, text: str, /) -> int:
        # Another thread holds the lock for a moment only.
        if self._lock.acquire(timeout=1):
            try:
                self._write_lines(text)
            except Exception as error:
                # A fault of the log cannot be logged.
                self._drop(type(error).__name__)
            finally:
                self._lock.release()
        return len(text)

    def _write_lines(self, text: str) -> None:
        if self._lost:
            text = LOST.format(count=self._lost, why=self._why) + text
        elif self._is_in_line:
            text = "\n" + text
        data = text.encode(errors="backslashreplace")
        written, why = self._push(data)
        if written == len(data):
            self._lost, self._is_in_line = 0, False
            return
        if written and self._lost:
            # The report of the loss is out, or part of it.
            self._lost = 0
        self._is_in_line = self._is_in_line or written > 0
        self._drop(why)

    def _drop(self, why: str) -> None:
        self._lost += 1
        self._why = why

    def _push(self, data: bytes) -> tuple[int, str]:
        """The number of bytes written, and the reason if not all were."""
        target, kind = self._target()
        # A stopped reader costs this once, not once per line.
        deadline = time.monotonic() + (0 if self._lost else PATIENCE_S)
        written = 0
        while written < len(data):
            if not stat.S_ISREG(kind) and not _is_ready(target, deadline):
                return written, STOPPED
            try:
                written += _send(target, kind, data[written : written + AT_ONCE])
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return written, STOPPED
                time.sleep(0.001)
            except OSError as error:
                return written, os.strerror(error.errno or 0)
        return written, ""

    def _target(self) -> tuple[int, int]:
        """The descriptor to write to, and the mode of what is behind it.

        A pipe or terminal is opened once more: O_NONBLOCK on the descriptor that was inherited
        would hold for all processes that share it.
        """
        kind = os.fstat(self._descriptor).st_mode
        if not stat.S_ISFIFO(kind) and not stat.S_ISCHR(kind):
            return self._descriptor, kind
        if self._own is None or not os.path.sameopenfile(self._own, self._descriptor):
            if self._own is not None:
                os.close(self._own)
                self._own = None
            try:
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                self._own = os.open(f"/proc/self/fd/{self._descriptor}", flags)
            except OSError:
                # Of another account, or its reader is gone: write as it is, after poll().
                return self._descriptor, kind
        return self._own, kind

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()


def _is_ready(descriptor: int, deadline: float) -> bool:
    """Whether a write of AT_ONCE bytes does not wait. A broken pipe is ready, to fail."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))


def _send(descriptor: int, kind: int, chunk: bytes) -> int:
    if not stat.S_ISSOCK(kind):
        return os.write(descriptor, chunk)
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        return connection.send(chunk, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


class LogHandler(logging.StreamHandler[LogStream]):
    """A log handler that never blocks, raises or logs."""

    def __init__(self) -> None:
        super().__init__(LogStream(2))
        self._thread = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(self._thread, "is_busy", False):
            # Logged while a line is made or written.
            return
        self._thread.is_busy = True
        try:
            self.stream.write(self.format(record) + self.terminator)
        except Exception as error:
            text = f"A log line of {record.name} could not be made: {type(error).__name__}"
            self.stream.write(text + self.terminator)
        finally:
            self._thread.is_busy = False

    def flush(self) -> None:
        """Nothing is kept back."""
