"""Import a library without others that it imports where they are installed, and nothing here needs.

Each process would have 5 to 10 MB more.
"""

from __future__ import annotations

import io
import logging
import os
import re
import select
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from monitor.facts.input_rules import escaped, escaped_json, escaped_lines

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger


@contextmanager
def imported_without(*names: str) -> Iterator[None]:
    """An import of these modules fails in the block, unless they are loaded already."""
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


# Format of log lines: text for people, JSON for programs; secrets are masked in both.
#
# A line of gpucoord carries `kind`, a stable name; in JSON it is the `event`.


with imported_without("rich", "greenlet", "twisted"):
    import structlog


SECRET_KEYS = re.compile(r"passw|secret|token|authorization|cookie|api_?key|database_url", re.I)
# user:PASSWORD@host of an address, and the token of a header, wherever they stand in a text.
# Each pattern reads every character a fixed number of times, as paths of requests come here too:
# \b gives each word one start, and the password is consumed whether or not an @ follows.
PASSWORD = re.compile(r"\b(\w+://[^\s:/@]+:)([^\s@]+)(@?)")
BEARER = re.compile(r"(Bearer\s+)[\w.~+/=-]+", re.I)
# Tracebacks and stacks.
SEVERAL_LINES = {"exception", "stack"}
_JSON = structlog.processors.JSONRenderer(ensure_ascii=False)


def mask(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A structlog processor that replaces secrets."""
    return {key: _masked(key, value) for key, value in event.items()}


def named(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Lines are identified by their kind; the sentence, which may change, is beside it."""
    if "kind" in event:
        event["text"], event["event"] = event["event"], event.pop("kind")
    return event


def _masked(key: str, value: Any) -> Any:
    if SECRET_KEYS.search(key):
        return "***"
    return masked(value) if isinstance(value, str) else value


def masked(text: str) -> str:
    """The text without the passwords and tokens in it."""
    return BEARER.sub(r"\1***", PASSWORD.sub(_without_password, text))


def _without_password(match: re.Match[str]) -> str:
    return f"{match[1]}***@" if match[3] else match[0]


def log_settings(style: str, level: str = "INFO") -> dict[str, Any]:
    """Django's LOGGING. Lines of structlog and of the standard library look the same."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    # Otherwise a failing handler writes a traceback to stderr, which may be the failing part.
    logging.raiseExceptions = False
    quiet = {"level": "WARNING"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": "gpucoord_site.service.logs.formatter", "style": style}},
        "handlers": {
            "stderr": {
                "class": "gpucoord_site.service.logs.LogHandler",
                "formatter": "line",
                "filters": ["short"],
            }
        },
        "filters": {"short": {"()": "gpucoord_site.service.logs.ShortRefusals"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            "django": {"handlers": [], "level": level, "propagate": True},
            # A line per request or task would hide the important lines.
            "django.server": {"handlers": [], **quiet, "propagate": True},
            "django.channels.server": quiet,
            "django-q": {"handlers": [], **quiet, "propagate": True},
            "daphne": quiet,
            "httpx": quiet,
            # It names paths, which are the secrets of some webhooks.
            "urllib3": {"level": "ERROR"},
            # security_log logs the same events under gpucoord's own names.
            "axes": {"level": "ERROR"},
        },
    }


class ShortRefusals(logging.Filter):
    """Requests that Django refuses by their form get no traceback: a client can send many."""

    def filter(self, record: logging.LogRecord) -> bool:
        is_answer = record.name == "django.request" and getattr(record, "status_code", 500) < 500
        if is_answer or record.name.startswith("django.security."):
            record.exc_info = None
        return True


def formatter(style: str) -> structlog.stdlib.ProcessorFormatter:
    """The formatter of every handler; colours only where a person looks."""
    as_json = style == "json"
    when = structlog.processors.TimeStamper(
        fmt="iso" if as_json else "%Y-%m-%d %H:%M:%S", utc=as_json
    )
    last: Processor = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    if as_json:
        last = _json_line
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_shared(), structlog.stdlib.ExtraAdder()],
        processors=[
            when,
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            *([named] if as_json else []),
            mask,
            *([] if as_json else [escape]),
            last,
        ],
    )


def escape(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape control and format characters: names that users chose cannot steer a terminal."""
    return {
        key: _escaped(key, value) if isinstance(value, str) else value
        for key, value in event.items()
    }


def _escaped(key: str, text: str) -> str:
    """Lines of a traceback are indented, so no message of an exception looks like a log line."""
    if key in SEVERAL_LINES:
        return "  " + escaped_lines(text).replace("\n", "\n  ")
    return escaped(text)


def _json_line(logger: WrappedLogger, method: str, event: EventDict) -> str:
    return escaped_json(str(_JSON(logger, method, event)))


def _shared() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.StackInfoRenderer(),
    ]


# The stream of log lines: a write never blocks or raises; what cannot be written is dropped.
#
# stderr may be a pipe whose reader has stopped or ended, or a file on a full disk. No other work
# may wait for it, and a fault of the log must not be logged.


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
