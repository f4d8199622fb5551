"""Parts of options that several schedulers write alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from scheduler.facts.units import parse_duration

# The options of gpucoord for a value; None: gpucoord has nothing with the same meaning.
Made = list[str] | None
Option = Callable[[str], Made]
TEXT = re.compile(r".+")
NUMBER = re.compile(r"[0-9]{1,5}")
IN_THE_LOG = (
    " The output is in gpucoord logs JOB; for a file too, begin the script with exec > FILE 2>&1"
)
NO_QUEUES = " There are no queues or partitions; --host and --model choose GPUs."
NOTIFIES = " Use #GPUCOORD --notify finished,failed."


def same(option: str, pattern: re.Pattern[str] = TEXT) -> Option:
    """The option of gpucoord with the same value."""

    def made(value: str) -> Made:
        return [option, value] if pattern.fullmatch(value) else None

    return made


def nothing(*values: str) -> Option:
    """For values that are how gpucoord works anyway."""
    return lambda value: [] if value in values else None


def time_limit(parts: Sequence[str], units: Sequence[str]) -> Made:
    """The time limit of numbers with these units."""
    if len(parts) > len(units) or not all(NUMBER.fullmatch(part) for part in parts):
        return None
    pairs = zip(parts, units, strict=False)
    text = " ".join(f"{int(part)}{unit}" for part, unit in pairs if int(part))
    try:
        parse_duration(text)
    except ValueError:
        return None
    return ["--time-limit", text]


def after(kind: str, jobs: Sequence[str]) -> Made:
    """Wait for the success or the end of jobs with these numbers."""
    if not jobs or not all(re.fullmatch("[0-9]{1,9}", job) for job in jobs):
        return None
    return ["--after-success" if kind in ("afterok", "done") else "--after", ",".join(jobs)]


def together(parts: Sequence[Made]) -> Made:
    """The options of all parts, if each has some meaning."""
    return None if None in parts else [word for part in parts if part for word in part]
