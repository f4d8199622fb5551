"""Values as users write them: sizes, durations, times, array indices, signals, job numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from itertools import chain
from math import ceil, floor, log10

from monitor.facts.formats import GIB, gib
from monitor.facts.input_rules import EARLIEST, LATEST, possible_time

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
_NUMBER = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})?")
_AMOUNT = re.compile(rf"({_NUMBER.pattern})\s*([a-z]*)")
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([a-z]+)\s*")
_CLOCK = re.compile(r"(?:([0-9]{1,6})-)?([0-9]{1,6}):([0-9]{1,2})(?::([0-9]{1,2}))?")
_LARGEST = 2**63 - 1
# No size, duration or time is longer as text. Longer texts are refused unread.
LONGEST_TEXT = 100
_QUOTED = 60
MOST_ELEMENTS = 10_000
LARGEST_INDEX = 1_000_000
# Longer texts are refused unread.
LONGEST_INDICES = 10_000
LONGEST_NUMBERS = 2_500
_INDICES = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7})(?::([0-9]{1,7}))?)?")
# Signals that can ask a job to save its work. The others end it or cannot be caught.
YIELD_SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGINT", "SIGTERM", "SIGHUP")


def size(value: int | None) -> str:
    """Bytes for a sentence: "20 GiB" when it is whole, else "12.3 GiB"."""
    return gib(value) if value is None or value % GIB else f"{value // GIB} GiB"


def minutes_left(minutes: float) -> float:
    """The rest of a budget, rounded down: whole minutes, below 10 two digits.

    So the figure is 0 only where nothing is left, and it never exceeds what is left.
    """
    return _rounded_minutes(minutes, floor)


def minutes_taken(minutes: float) -> float:
    """The part of a budget that is used or requested, rounded up in the same steps."""
    return _rounded_minutes(minutes, ceil)


def _rounded_minutes(minutes: float, whole: Callable[[float], int]) -> float:
    # Sums of minutes are not exact; a thousandth of a minute is of no use.
    if minutes < 0.001:
        return 0.0
    scale = float(10 ** max(0, 1 - floor(log10(minutes))))
    return whole(round(minutes * scale, 4)) / scale


def quoted(text: str) -> str:
    """The text in quotation marks for an error message, cut at 60 characters."""
    return f'"{text}"' if len(text) <= _QUOTED else f'"{text[:_QUOTED]}…"'


def parse_bytes(text: str) -> int:
    """Read "20GiB", "512 MiB", "1.5g" or "4096 B"; GB is 1000³, g and GiB are 1024³.

    Raises ValueError with a sentence for the user. A number without a unit is refused.
    """
    cleaned = text.strip().lower()
    match = _AMOUNT.fullmatch(cleaned) if len(cleaned) <= LONGEST_TEXT else None
    if match is None or match[2] not in _BYTES:
        raise ValueError(f"{quoted(text)} is not a size; write it like 20GiB or 512MiB.")
    if not match[2]:
        raise ValueError(
            f"{quoted(text)} has no unit; write it like 20GiB or 512MiB: B, KiB, MiB, GiB and TiB"
            " count in 1024s, kB, MB, GB and TB in 1000s."
        )
    amount: int = round(float(match[1]) * _BYTES[match[2]])
    if not 0 < amount <= _LARGEST:
        raise ValueError(f"{quoted(text)} is not a possible size; write it like 20GiB or 512MiB.")
    return amount


def parse_duration(text: str) -> timedelta:
    """Read "2h", "90 min", "1d 12h", "1:30:00" or "2-12:00:00".

    Raises ValueError with a sentence for the user. A number without a unit is refused.
    """
    cleaned = text.strip().lower()
    if _NUMBER.fullmatch(cleaned[:LONGEST_TEXT]) and float(cleaned) > 0:
        raise ValueError(
            f"{quoted(text)} has no unit; write it like 2h, 90min or 1:30:00: s, min, h, d or w."
        )
    seconds = None
    if len(cleaned) <= LONGEST_TEXT:
        seconds = _clock_seconds(cleaned) if ":" in cleaned else _amount_seconds(cleaned)
    if seconds is None or not 0 < seconds < 2**31:
        raise ValueError(f"{quoted(text)} is not a duration; write it like 2h, 90min or 1:30:00.")
    return timedelta(seconds=seconds)


def _clock_seconds(text: str) -> float | None:
    """d-h:m:s, d-h:m or h:m:s. Raises ValueError with both readings of two parts alone."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    if match[1] is None and match[4] is None:
        first, second = int(match[2]), int(match[3])
        raise ValueError(
            f"{quoted(text)} has two readings: {_joined(first, 'min', second, 's')}, or"
            f" {_joined(first, 'h', second, 'min')}. Write one of them, or {first}:{second:02}:00."
        )
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 86400 + hours * 3600 + minutes * 60 + seconds


def _joined(first: int, unit: str, second: int, smaller: str) -> str:
    """ "1h 30min"; "30min" where the smaller part is 0."""
    return f"{first}{unit}" + (f" {second}{smaller}" if second else "")


def _amount_seconds(text: str) -> float | None:
    """The sum of parts such as 1d 12h; None when the text has anything else."""
    at, total = 0, 0.0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part[2] not in _SECONDS:
            return None
        total += float(part[1]) * _SECONDS[part[2]]
        at = part.end()
    return total


def parse_moment(text: str, now: datetime, zone: str | None) -> datetime:
    """Read "in 2h", "22:00" (the next), "tomorrow 06:00", "2026-03-02 22:00" or ISO 8601.

    Without an offset it is in `zone`; None: in the time zone of this process, as TZ names it.
    Raises ValueError with a sentence.
    """
    if len(text) > LONGEST_TEXT:
        raise ValueError(_no_moment(text))
    cleaned = " ".join(text.strip().lower().split())
    # Few submissions need it, and its import takes a thirtieth of one.
    from zoneinfo import ZoneInfo

    tz = None if zone is None else ZoneInfo(zone)
    if relative := re.fullmatch(r"(?:in |\+)(.+)", cleaned):
        return now + parse_duration(relative[1])
    if relative := re.fullmatch(r"(today |tomorrow )?([0-9]{1,2}):([0-9]{2})", cleaned):
        return _clock(relative[1], int(relative[2]), int(relative[3]), now, tz, text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(_no_moment(text)) from None
    try:
        return possible_time(moment if moment.tzinfo else _in_zone(moment, tz))
    except ValueError:
        raise ValueError(
            f"{quoted(text)} is out of range; times between {EARLIEST.year} and"
            f" {LATEST.year - 1} are possible."
        ) from None


def _no_moment(text: str) -> str:
    return (
        f"{quoted(text)} is not a time; write it like 22:00, tomorrow 06:00, 2026-03-02 22:00"
        " or in 2h."
    )


def _clock(
    day: str | None, hour: int, minute: int, now: datetime, zone: tzinfo | None, text: str
) -> datetime:
    if hour > 23 or minute > 59:
        raise ValueError(f'"{text}" is no time of a day; write it like 22:00.')
    local = now.astimezone(zone)
    at = local.replace(hour=hour, minute=minute, second=0, microsecond=0, tzinfo=None)
    if day == "tomorrow " or (day is None and _in_zone(at, zone) <= now):
        at = (at + timedelta(days=1)).replace(fold=0)
    return _in_zone(at, zone)


def _in_zone(wall_time: datetime, zone: tzinfo | None) -> datetime:
    """None: in the time zone of this process."""
    return wall_time.astimezone() if zone is None else wall_time.replace(tzinfo=zone)


def parse_indices(text: str) -> tuple[tuple[int, ...], int | None]:
    """Read "0-9", "1,3,5" or "0-20:2", and after % how many may run at a time: "0-99%4".

    Raises ValueError with a sentence. The work is bounded by the limits on the text's length and
    on the sum of all ranges' sizes, so overlapping ranges count more than once.
    """
    if len(text) > LONGEST_INDICES:
        raise ValueError(
            f"The indices have {len(text)} characters; at most {LONGEST_INDICES} are possible."
            " Write ranges such as 0-99."
        )
    body, percent, limit = text.replace(" ", "").partition("%")
    if percent and not re.fullmatch(r"[1-9][0-9]{0,5}", limit):
        shown = quoted(text)
        raise ValueError(f"{shown}: after % write how many may run at a time, as in 0-99%4.")
    ranges: list[range] = []
    elements = 0
    for part in body.split(","):
        indices = _indices(part, text)
        elements += len(indices)
        if elements > MOST_ELEMENTS:
            raise ValueError(f"{quoted(text)} is more than {MOST_ELEMENTS} jobs; split it up.")
        ranges.append(indices)
    return tuple(sorted(set(chain(*ranges)))), int(limit) if percent else None


def _indices(part: str, text: str) -> range:
    if any(len(number) > 7 for number in re.findall(r"[0-9]+", part)):
        raise ValueError(f"{quoted(part)} is out of range; the largest index is {LARGEST_INDEX}.")
    match = _INDICES.fullmatch(part)
    if match is None:
        raise ValueError(f"{quoted(text)} has no valid index; write it like 0-9, 1,3,5 or 0-20:2.")
    first, step = int(match[1]), int(match[3] or 1)
    last = int(match[2]) if match[2] else first
    if last < first or step < 1 or last > LARGEST_INDEX:
        raise ValueError(
            f'"{part}" is not a range: it goes up, in steps of 1 or more, to at most'
            f" {LARGEST_INDEX}."
        )
    return range(first, last + 1, step)


def parse_capability(text: str) -> tuple[int, int]:
    """Read "8.0" or "9". Raises ValueError with a sentence."""
    match = re.fullmatch(r"([0-9]{1,2})(?:\.([0-9]))?", text.strip())
    if match is None:
        raise ValueError(f"{quoted(text)} is no compute capability; write it like 8.0.")
    return int(match[1]), int(match[2] or 0)


def parse_signal(text: str) -> str:
    """Read "USR1" or "SIGUSR1". Raises ValueError with a sentence."""
    name = text.strip().upper()
    name = name if name.startswith("SIG") else f"SIG{name}"
    if name not in YIELD_SIGNALS:
        names = ", ".join(signal.removeprefix("SIG") for signal in YIELD_SIGNALS)
        raise ValueError(f"{quoted(text)} can't be used; choose one of {names}.")
    return name


def parse_numbers(text: str) -> tuple[int, ...]:
    """Read numbers of jobs: "12, 13" or "12 13". Raises ValueError with a sentence."""
    if len(text) > LONGEST_NUMBERS:
        raise ValueError(
            f"The list of jobs has {len(text)} characters; at most {LONGEST_NUMBERS} are possible."
            " An array is named by the number of its first job."
        )
    words = text.replace(",", " ").replace("#", " ").split()
    if not all(re.fullmatch(r"[0-9]{1,18}", word) for word in words):
        raise ValueError(f"{quoted(text)} names no jobs; write their numbers: 12, 13.")
    return tuple(dict.fromkeys(int(word) for word in words))
