"""Facts: sizes and durations as people write them ("20GiB", "2h 30m"), read into numbers."""

from __future__ import annotations

import re
from datetime import timedelta

from monitor.formats import GIB, gib

_BYTES = {
    "": 1,
    "b": 1,
    **{p: 1024**n for n, p in enumerate(("k", "m", "g", "t"), start=1)},
    **{f"{p}ib": 1024**n for n, p in enumerate(("k", "m", "g", "t"), start=1)},
    **{f"{p}b": 1000**n for n, p in enumerate(("k", "m", "g", "t"), start=1)},
}
_SECONDS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
    **dict.fromkeys(("w", "week", "weeks"), 604800),
}
_AMOUNT = r"(\d{1,18}(?:\.\d{1,18})?)\s*([a-z]*)"
_PART = r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]+)"
_CLOCK = re.compile(r"(?:(\d{1,6})-)?(\d{1,6}):(\d{1,2})(?::(\d{1,2}))?")
_LARGEST = 2**63 - 1


def size(value: int | None) -> str:
    """Bytes for a sentence: "20 GiB" when it is whole, else "12.3 GiB"."""
    return gib(value) if value is None or value % GIB else f"{value // GIB} GiB"


def parse_bytes(text: str) -> int:
    """Read "20GiB", "512 MiB", "1.5g" or a plain number of bytes; GB is 1000³, g and GiB 1024³.

    Raises ValueError with a sentence for the person who typed it.
    """
    match = re.fullmatch(_AMOUNT, text.strip().lower())
    if match is None or match[2] not in _BYTES:
        raise ValueError(f'"{text}" is not a size; write it like 20GiB or 512MiB.')
    amount: int = round(float(match[1]) * _BYTES[match[2]])
    if not 0 < amount <= _LARGEST:
        raise ValueError(f'"{text}" is not a possible size; write it like 20GiB or 512MiB.')
    return amount


def parse_duration(text: str) -> timedelta:
    """Read "2h", "90 min", "1d 12h", "1:30:00", "2-12:00:00" or a plain number of seconds.

    Raises ValueError with a sentence for the person who typed it.
    """
    cleaned = text.strip().lower()
    seconds = _clock_seconds(cleaned) if ":" in cleaned else _amount_seconds(cleaned)
    if seconds is None or not 0 < seconds < 2**31:
        raise ValueError(f'"{text}" is not a duration; write it like 2h, 90min or 1:30:00.')
    return timedelta(seconds=seconds)


def _clock_seconds(text: str) -> float | None:
    """d-h:m:s, h:m:s or h:m."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 86400 + hours * 3600 + minutes * 60 + seconds


def _amount_seconds(text: str) -> float | None:
    if re.fullmatch(r"\d{1,18}(\.\d{1,18})?", text):
        return float(text)
    if re.fullmatch(rf"(?:{_PART}\s*)+", text) is None:
        return None
    parts = re.findall(_PART, text)
    if any(unit not in _SECONDS for _, unit in parts):
        return None
    return sum(float(amount) * _SECONDS[unit] for amount, unit in parts)
