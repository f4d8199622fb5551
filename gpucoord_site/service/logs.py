"""Format of log lines: text for people, JSON for programs; secrets are masked in both.

A line of gpucoord carries `kind`, a stable name; in JSON it is the `event`.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any

from gpucoord_site.service.slim_imports import imported_without
from monitor.facts.input_rules import escaped, escaped_json, escaped_lines

with imported_without("rich", "greenlet", "twisted"):
    import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

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
                "class": "gpucoord_site.service.log_stream.LogHandler",
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
