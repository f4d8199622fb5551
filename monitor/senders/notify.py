"""Edge: sends messages through apprise. Nothing else imports it, and it is loaded on first use.

An address holds secrets. What apprise says about a failure is given back without any part of it.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import unquote

K = TypeVar("K")
TYPES = {"info": "info", "warning": "warning", "error": "failure"}
UNUSABLE = "The address is not one that can be used."
MASK = "***"
# What a library says underneath, and in which words that is told: never its own, which name all.
REASONS = {
    "resol": "its host has no address (DNS)",
    "name or service not known": "its host has no address (DNS)",
    "timed out": "it did not answer in time",
    "refused": "nothing listens there",
    "certificate": "its certificate is not trusted",
    "authentication": "it did not accept user and password",
}
_apprise_log = logging.getLogger("apprise")
# It names addresses in what it logs: nothing of that goes anywhere but to _Listening.
_apprise_log.propagate = False
_apprise_log.setLevel(logging.DEBUG)
_apprise_log.addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Letter:
    """What to send where. `receiver`: a mail address that stands in for the one in the address."""

    address: str
    title: str
    text: str
    severity: str = "info"
    receiver: str = ""


@dataclass(frozen=True, slots=True)
class Service:
    """What an address leads to: its name for people, and whether receivers can be chosen."""

    name: str
    is_mail: bool


def service_of(address: str) -> Service | None:
    """None: no such service, or the address lacks something."""
    target = _target(address)
    if target is None:
        return None
    return Service(str(target.service_name), address.lower().startswith("mailto"))


def send_all(letters: Mapping[K, Letter], limit_s: float) -> dict[K, str | None]:
    """Send all at once; the problem of each, None = delivered. Never takes longer than the limit.

    What has not answered by then counts as not delivered; its thread ends when its socket does.
    """
    answers: dict[K, str | None] = {}

    def send_one(key: K, letter: Letter, target: Any) -> None:
        answers[key] = _send(letter, target)

    # Made here, as loading its services is not for several threads at once.
    prepared = [(key, letter, _target(letter.address)) for key, letter in letters.items()]
    threads = [threading.Thread(target=send_one, args=args, daemon=True) for args in prepared]
    deadline = monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))
    late = f"No answer within {limit_s:g} s."
    given = dict(answers)
    return {key: given.get(key, late) for key in letters}


def _send(letter: Letter, target: Any) -> str | None:
    if target is None:
        return UNUSABLE
    if letter.receiver:
        target.targets = [(False, letter.receiver)]
    kind = TYPES.get(letter.severity, "info")
    try:
        with _Listening() as heard:
            sent = target.notify(title=letter.title, body=letter.text, notify_type=kind)
    except Exception as error:
        return _without(letter.address, f"{type(error).__name__}: {error}")
    if sent:
        return None
    why = f" ({heard.reason})" if heard.reason else ""
    return _without(letter.address, heard.said or "It was not accepted.") + why


def _target(address: str) -> Any:
    import apprise

    return apprise.Apprise.instantiate(address, suppress_exceptions=True)


class _Listening(logging.Handler):
    """What apprise says in this thread while it sends: the last warning, and why in our words."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.said = ""
        self.reason = ""
        self._thread = threading.get_ident()

    def __enter__(self) -> _Listening:
        _apprise_log.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        _apprise_log.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread != self._thread:
            return
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            self.said = text
        elif record.levelno == logging.DEBUG and "exception" in text.lower():
            found = (words for sign, words in REASONS.items() if sign in text.lower())
            self.reason = next(found, self.reason)


def _without(address: str, said: str) -> str:
    """A text in which no part of the address is left."""
    rest = address.partition("://")[2]
    written = set(re.split(r"[/:@?&=#,]", rest))
    for part in sorted(written | {unquote(part) for part in written}, key=len, reverse=True):
        if len(part) >= 3:
            said = re.sub(re.escape(part), MASK, said, flags=re.IGNORECASE)
    return " ".join(said.split())[:300]
