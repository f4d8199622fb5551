"""Policy: the progress that a job reports, and when it is expected to end.

A job reports by the file GPUCOORD_PROGRESS_FILE, with the text `0.45 message`, or by a line of its
log, `::gpucoord progress 0.45 message`. `45%` and `3/125` are numbers too. Else a counter of epochs
in its log counts, such as `Epoch 9/20`, with the bar of tqdm behind it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.facts.jobs import Ends, RunTime

LONGEST_MESSAGE = 200
# Of the file, and of the end of the log, in bytes.
LARGEST_FILE, LOG_TAIL = 4096, 65_536
# Progress is stored at most this often, and a smaller change of it later.
STORED_EVERY = timedelta(seconds=2)
SMALL_CHANGE, SMALL_CHANGES_EVERY = 0.01, timedelta(seconds=15)
# An expected end is stored again when it has moved by this part of the remaining time.
MOVED_PART, MOVED_LEAST = 0.05, timedelta(seconds=5)
# How much longer than by its progress a job takes in one of ten cases.
SLOWER_PART = 0.3
# Below this, a part of the run time says little about the rest.
LEAST_FRACTION = 0.005
_LINE = re.compile(rb"^::gpucoord progress[ \t]+([^\r\n]*)", re.MULTILINE)
_EPOCH = re.compile(
    rb"(?:^|[\r\n])[^\r\n]{0,80}?\bepoch[ \t:]{0,4}[\[(]?[ \t]{0,4}"
    rb"(\d{1,6})[ \t]{0,4}(?:/|of)[ \t]{0,4}(\d{1,6})\b[\])]?([^\r\n]{0,200})",
    re.IGNORECASE,
)
_BAR = re.compile(rb":[ \t]{0,4}(\d{1,3})%\|")
_NUMBER = re.compile(r"(\d{1,9}(?:\.\d{0,9})?)\s*(?:(%)|/\s*(\d{1,9}))?(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Progress:
    """fraction: 0 to 1."""

    fraction: float
    message: str = ""


def parse(text: str) -> Progress | None:
    """`0.45 message`, `45 % message` or `3/125 message`; None: it does not begin with a number."""
    line = text.strip().partition("\n")[0].strip()
    match = _NUMBER.match(line)
    if match is None:
        return None
    number, percent, whole = match.groups()
    divisor = 100.0 if percent else float(whole or 1)
    if not divisor:
        return None
    fraction = min(1.0, float(number) / divisor)
    return Progress(fraction, _shown(line[match.end() :]))


def _shown(message: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in message).split())[
        :LONGEST_MESSAGE
    ]


def in_log(tail: bytes) -> Progress | None:
    """The newest progress in the end of a log; None: no line reports any."""
    for line in reversed(_LINE.findall(tail)):
        progress = parse(line.decode("utf-8", "replace"))
        if progress is not None:
            return progress
    return _in_epochs(tail)


def _in_epochs(tail: bytes) -> Progress | None:
    """From the last counter of epochs.

    A line with nothing but the counter begins its epoch; with figures behind it, it ends it.
    """
    matches = _EPOCH.findall(tail)
    if not matches:
        return None
    number, whole, rest = int(matches[-1][0]), int(matches[-1][1]), matches[-1][2]
    if not whole or number > whole:
        return None
    bar = _BAR.match(rest)
    if bar is not None:
        done = max(0, number - 1) + min(100, int(bar[1])) / 100
    else:
        done = number if rest.strip(b" \t.:-") else max(0, number - 1)
    return Progress(done / whole, f"epoch {number} of {whole}")


def is_news(old: Progress | None, new: Progress, stored_at: datetime | None, now: datetime) -> bool:
    """Whether the new progress is stored now, so that a busy reporter costs few writes."""
    if old is None or stored_at is None:
        return True
    if new == old or now - stored_at < STORED_EVERY:
        return False
    is_small = abs(new.fraction - old.fraction) < SMALL_CHANGE and new.fraction < 1
    return not is_small or now - stored_at >= SMALL_CHANGES_EVERY


def run_time(
    started_at: datetime,
    progress: Progress | None,
    reported_at: datetime | None,
    usual: RunTime | None,
    limit: timedelta | None = None,
) -> RunTime | None:
    """The whole run time by the progress, else the usual one. None: neither is known."""
    if progress is None or reported_at is None or progress.fraction < LEAST_FRACTION:
        return usual
    total = max(reported_at - started_at, timedelta()) / progress.fraction
    late = total + (1 - progress.fraction) * SLOWER_PART * total
    return RunTime(total, late) if limit is None else RunTime(min(total, limit), min(late, limit))


def has_moved(old: Ends | None, new: Ends | None, now: datetime) -> bool:
    """Whether an expected end is stored again."""
    if old is None or new is None:
        return old != new
    least = max(MOVED_LEAST, (new.p50 - now) * MOVED_PART)
    return old.p50 < now or abs(new.p50 - old.p50) > least or abs(new.p90 - old.p90) > 2 * least
