"""How log lines look: text for people, JSON for machines; secrets are masked in both.

A line of ours carries `kind`, a name that never changes; in JSON that is its `event`.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

SECRET_KEYS = re.compile(r"passw|secret|token|authorization|cookie|api_?key|database_url", re.I)
# user:PASSWORD@host of an address, and the token of a header, wherever they stand in a text.
IN_TEXT = (
    (re.compile(r"(\w+://[^\s:/@]+:)[^\s@]+@"), r"\1***@"),
    (re.compile(r"(Bearer\s+)[\w.~+/=-]+", re.I), r"\1***"),
)


def mask(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace what must not be read by those who read logs."""
    return {key: _masked(key, value) for key, value in event.items()}


def named(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Lines are found by their kind; the sentence, which may change, is beside it."""
    if "kind" in event:
        event["text"], event["event"] = event["event"], event.pop("kind")
    return event


def _masked(key: str, value: Any) -> Any:
    if SECRET_KEYS.search(key):
        return "***"
    return masked(value) if isinstance(value, str) else value


def masked(text: str) -> str:
    """The text without the passwords and tokens in it."""
    for pattern, replacement in IN_TEXT:
        text = pattern.sub(replacement, text)
    return text


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
    quiet = {"level": "WARNING"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": "gpucoord_site.logs.formatter", "style": style}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            "django": {"handlers": [], "level": level, "propagate": True},
            # One line per request and per task would bury what matters.
            "django.server": {"handlers": [], **quiet, "propagate": True},
            "django.channels.server": quiet,
            "django-q": {"handlers": [], **quiet, "propagate": True},
            "daphne": quiet,
            "httpx": quiet,
            # It names paths, which are the secrets of some webhooks.
            "urllib3": {"level": "ERROR"},
            # security_log tells the same under names of ours.
            "axes": {"level": "ERROR"},
        },
    }


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
        last = structlog.processors.JSONRenderer(ensure_ascii=False)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_shared(), structlog.stdlib.ExtraAdder()],
        processors=[
            when,
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            *([named] if as_json else []),
            mask,
            last,
        ],
    )


def _shared() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.StackInfoRenderer(),
    ]
