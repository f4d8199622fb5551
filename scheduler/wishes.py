"""Facts: moments, indices and signals as people write them, read into what a job asks."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from scheduler.units import parse_duration

MOST_ELEMENTS = 10_000
LARGEST_INDEX = 1_000_000
# What may tell a job to save its work; the others end it, or can't be heard.
YIELD_SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGINT", "SIGTERM", "SIGHUP")


def parse_moment(text: str, now: datetime, zone: str) -> datetime:
    """Read "in 2h", "22:00" (the next), "tomorrow 06:00", "2026-03-02 22:00" or ISO 8601.

    Without an offset it is in `zone`. Raises ValueError with a sentence.
    """
    cleaned = " ".join(text.strip().lower().split())
    here = now.astimezone(ZoneInfo(zone))
    if found := re.fullmatch(r"(?:in |\+)(.+)", cleaned):
        return now + parse_duration(found[1])
    if found := re.fullmatch(r"(today |tomorrow )?(\d{1,2}):(\d{2})", cleaned):
        return _clock(found[1], int(found[2]), int(found[3]), here, text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f'"{text}" is no time; write it like 22:00, tomorrow 06:00, 2026-03-02 22:00 or in 2h.'
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone))


def _clock(day: str | None, hour: int, minute: int, here: datetime, text: str) -> datetime:
    if hour > 23 or minute > 59:
        raise ValueError(f'"{text}" is no time of a day; write it like 22:00.')
    at = here.replace(hour=hour, minute=minute, second=0, microsecond=0)
    if day == "tomorrow " or (day is None and at <= here):
        at = (at + timedelta(days=1)).replace(fold=0)
    return at


def parse_indices(text: str) -> tuple[tuple[int, ...], int | None]:
    """Read "0-9", "1,3,5" or "0-20:2", and after % how many may run at a time: "0-99%4".

    Raises ValueError with a sentence.
    """
    body, percent, limit = text.replace(" ", "").partition("%")
    if percent and not re.fullmatch(r"[1-9]\d{0,5}", limit):
        raise ValueError(f'"{text}": after % write how many may run at a time, as in 0-99%4.')
    found: set[int] = set()
    for part in body.split(","):
        found |= _indices(part, text)
        if len(found) > MOST_ELEMENTS:
            raise ValueError(f'"{text}" is more than {MOST_ELEMENTS} jobs; split it up.')
    return tuple(sorted(found)), int(limit) if percent else None


def _indices(part: str, text: str) -> set[int]:
    match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", part)
    if match is None:
        raise ValueError(f'"{text}" names no indices; write it like 0-9, 1,3,5 or 0-20:2.')
    first, step = int(match[1]), int(match[3] or 1)
    last = int(match[2]) if match[2] else first
    if last < first or step < 1 or last > LARGEST_INDEX:
        raise ValueError(
            f'"{part}" is no range: it goes up, in steps of 1 or more, to at most {LARGEST_INDEX}.'
        )
    return set(range(first, last + 1, step)[: MOST_ELEMENTS + 1])


def parse_capability(text: str) -> tuple[int, int]:
    """Read "8.0" or "9". Raises ValueError with a sentence."""
    match = re.fullmatch(r"\s*(\d{1,2})(?:\.(\d))?\s*", text)
    if match is None:
        raise ValueError(f'"{text}" is no compute capability; write it like 8.0.')
    return int(match[1]), int(match[2] or 0)


def parse_signal(text: str) -> str:
    """Read "USR1" or "SIGUSR1". Raises ValueError with a sentence."""
    name = text.strip().upper()
    name = name if name.startswith("SIG") else f"SIG{name}"
    if name not in YIELD_SIGNALS:
        known = ", ".join(signal.removeprefix("SIG") for signal in YIELD_SIGNALS)
        raise ValueError(f'"{text}" can\'t be used; choose one of {known}.')
    return name


def parse_numbers(text: str) -> tuple[int, ...]:
    """Read numbers of jobs: "12, 13" or "12 13". Raises ValueError with a sentence."""
    words = text.replace(",", " ").replace("#", " ").split()
    if not all(re.fullmatch(r"\d{1,18}", word) for word in words):
        raise ValueError(f'"{text}" names no jobs; write their numbers: 12, 13.')
    return tuple(dict.fromkeys(int(word) for word in words))
