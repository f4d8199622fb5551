"""Policy: jobs of one program that fail in a row, shortly after their start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.facts.jobs import Outcome

MOST_LINES, LONGEST_LINE = 15, 300
SHELL = ("/bin/sh", "-c")


@dataclass(frozen=True, slots=True)
class CrashGuard:
    """Further jobs are held after `failures` quick failures in a row.

    quick: from the start to the failure.
    """

    failures: int = 3
    quick: timedelta = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that started and has ended."""

    number: int
    outcome: str
    started_at: datetime
    ended_at: datetime


def program(argv: Sequence[str]) -> tuple[str, ...]:
    """The words that are equal in jobs of one program: it and its script, without arguments."""
    if tuple(argv[:2]) == SHELL and len(argv) == 3:
        return tuple(argv[2].split()[:2])
    if "-c" in argv[:-2]:
        # A copied script, and its path.
        return (argv[0], argv[argv.index("-c") + 2])
    return tuple(argv[:2])


def quick_series(newest_first: Iterable[EndedJob], guard: CrashGuard) -> list[int]:
    """The jobs of a whole series of quick failures, the oldest first; [] = there is none."""
    series: list[int] = []
    for job in newest_first:
        if job.outcome != Outcome.FAILED.value or job.ended_at - job.started_at > guard.quick:
            break
        series.append(job.number)
        if len(series) == guard.failures:
            return series[::-1]
    return []


def reason(series: Sequence[int], guard: CrashGuard) -> str:
    """A sentence that all users may see."""
    jobs = f"Job {series[0]}" if len(series) == 1 else f"Jobs {', '.join(map(str, series))}"
    return (
        f"{jobs} of the same program failed within {guard.quick.total_seconds():g} s of the start,"
        " so it is held until it is released."
    )


def last_lines(tail: bytes) -> str:
    """The end of a log as text, for its owner."""
    # A bar of progress goes back to the start of its line.
    written = tail.decode(errors="replace").replace("\r\n", "\n").split("\n")
    lines = [line.rpartition("\r")[2] for line in written]
    shown = [line[:LONGEST_LINE] for line in lines if line.strip()][-MOST_LINES:]
    return "\n".join(shown).replace("\0", "")
