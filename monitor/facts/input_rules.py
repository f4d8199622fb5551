"""Facts: which characters and which times gpucoord accepts from users, and how it prints others."""

from __future__ import annotations

import json
import re
import unicodedata
from datetime import UTC, datetime
from typing import Any

# Times outside cannot be shown in every time zone, and mean nothing to a scheduler.
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(2200, 1, 1, tzinfo=UTC)
TIME_SENTENCE = "Write a time between 1970 and 2199 with its zone, such as 2026-03-02T12:00:00Z."
CHARACTER_SENTENCE = "This has a character that can't be used."

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_LINE_ENDS = {"\n", "\r", "\t"}
# Control, format (bidirectional marks among them), surrogate; line and paragraph separator.
_REFUSED = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_RFC_3339 = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)


def is_storable(text: str) -> bool:
    """No NUL, which no database and no program takes, and no half of a surrogate pair."""
    return _UNSTORABLE.search(text) is None


def holds_unstorable(value: object) -> bool:
    """Whether any text in a JSON value, names of fields included, is not storable."""
    if isinstance(value, str):
        return not is_storable(value)
    if isinstance(value, dict):
        return any(holds_unstorable(part) for pair in value.items() for part in pair)
    return isinstance(value, list | tuple) and any(map(holds_unstorable, value))


def character_problem(text: str, *, lines: bool = False) -> str | None:
    """Why a name or a reason can't hold this text; None: it can. `lines`: it may have several."""
    if text.isprintable():
        return None
    for character in text:
        if _is_refused(character) and not (lines and character in _LINE_ENDS):
            name = unicodedata.name(character, "a control character")
            return f"The character U+{ord(character):04X} ({name}) can't be used here."
    return None


def escaped(text: str) -> str:
    r"""The text for a log or a terminal: control and format characters as \x1b or \u202e."""
    if text.isprintable():
        return text
    return "".join(_escape(each) if _is_refused(each) else each for each in text)


def escaped_lines(text: str) -> str:
    """The same for a text of several lines, such as a traceback."""
    return "\n".join(escaped(line) for line in text.split("\n"))


def escaped_json(line: str) -> str:
    """JSON of one line with the same characters as \\uXXXX, which means the same."""
    if line.isprintable():
        return line
    return "".join(json.dumps(each)[1:-1] if _is_refused(each) else each for each in line)


def is_number(text: str, digits: int = 18) -> bool:
    """Whether it is a whole number in ASCII digits, small enough for a row's key."""
    return 0 < len(text) <= digits and text.isascii() and text.isdecimal()


def possible_time(moment: datetime) -> datetime:
    """The same moment in UTC. Raises ValueError outside EARLIEST..LATEST or without a zone."""
    if moment.tzinfo is None:
        raise ValueError(TIME_SENTENCE)
    try:
        in_utc = moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(TIME_SENTENCE) from None
    if not EARLIEST <= in_utc < LATEST:
        raise ValueError(TIME_SENTENCE)
    return in_utc


def parse_time(text: str) -> datetime:
    """Read a time as RFC 3339 writes it. Raises ValueError with a sentence."""
    if len(text) > 40 or not _RFC_3339.fullmatch(text):
        raise ValueError(TIME_SENTENCE)
    try:
        return possible_time(datetime.fromisoformat(text.upper()))
    except ValueError:
        raise ValueError(TIME_SENTENCE) from None


def _is_refused(character: str) -> bool:
    return unicodedata.category(character) in _REFUSED


def _escape(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


# JSON that other programs and users wrote.


def parse_json(text: str | bytes, *, allows_nan: bool = True) -> Any:
    """The value. Raises ValueError, also for a text that is nested too deeply.

    allows_nan: whether NaN and Infinity are read, which Python writes although they are no JSON.
    """
    try:
        return json.loads(text, parse_constant=None if allows_nan else _refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
