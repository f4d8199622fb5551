"""Policy: whether a job runs again after an attempt has ended, and what it waits for then.

exit 85 (checkpoint saved), after a yield request     again
exit 85 without a request, if it can be asked         again
other exit after a yield request                      again with `requeue`
runner or GPU lost, or restart of the machine         again with `requeue` or `retries`, or if it is
                                                      preemptible and has a checkpoint; not counted
                                                      as a retry, with back-off from the second loss
                                                      in a row on; a worker that has completed an
                                                      item ends such a row
out of GPU memory, or of host memory                  while `retries` are left, with more memory
any other failure                                     while `retries` are left, with back-off
time limit exceeded, cancelled                        ended
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from statistics import median
from zlib import crc32

from msgspec import Struct

from monitor.facts.formats import GIB
from monitor.facts.thresholds import threshold
from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details
from scheduler.facts.jobs import DependencyKind, Outcome
from scheduler.queue.planner.preemption import COOL_DOWN, MOST_REQUEUES

SAVED_EXIT_CODE = 85
# Those that the runner sends to a job that has to leave.
SIGNAL_NAMES = {9: "SIGKILL", 15: "SIGTERM"}
_GPU_MEMORY = re.compile(
    rb"CUDA out of memory|(?<!lang\.)OutOfMemoryError|cudaErrorMemoryAllocation"
    rb"|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: Out of memory"
)


class FailureCause(StrEnum):
    """Why an attempt ended as it did: the job's own doing, too little memory of its GPUs or of the
    host, or the machine's.
    """

    OWN = "own"
    GPU_MEMORY = "GPU memory"
    MEMORY = "memory"
    MACHINE = "machine"


# Delay before the first retry, doubled after each failure, and the longest one.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 60.0, 3600.0
# %: spreads the retries of jobs that failed together.
JITTER_PCT = 10.0
# The declared memory of the GPU or host is multiplied by this after an out-of-memory failure.
MEMORY_FACTOR = 1.25
# A job whose runner or GPU was lost more often is held until it is released.
MOST_LOST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Retry delays and limits."""

    # fmt: off
    down_after_minutes: float = threshold(0.0, "Silent host counts as down after", unit="min",
        ge=0, le=10080,
        help="Jobs with requeue that ran there then start on other hosts, as if an operator had "
             "confirmed it. If the host still runs, such a job may run twice for a while. "
             "Only whole minutes in which another host had readings count, so it takes up to two "
             "minutes longer. "
             "0 = only an operator confirms it.")
    # fmt: on


class RetryHistory(Struct, frozen=True, kw_only=True):
    """Retry options and history of a job.

    lost: attempts that the machine lost since the last one that completed an item of a batch.
    """

    job_id: int
    requeue: bool = False
    preemptible: bool = False
    retries: int = 0
    failures: int = 0
    requeues: int = 0
    lost: int = 0
    memory_bytes: int | None = None
    host_memory_bytes: int | None = None


class AttemptEnd(Struct, frozen=True, kw_only=True):
    """How an attempt ended. yielded: after a yield request. counts: towards the limit of requeues.

    has_saved: there is a checkpoint. has_delivered: it completed an item of a batch.
    """

    outcome: Outcome
    exit_code: int | None = None
    signal: int | None = None
    cause: FailureCause = FailureCause.OWN
    yielded: bool = False
    counts: bool = True
    has_saved: bool = False
    has_delivered: bool = False


class RetryDecision(Struct, frozen=True, kw_only=True):
    """Whether and how the job runs again. outcome: of the attempt, and of a job that has ended.

    held: why it is held for a user. pause: time before the next attempt. cool_down: time without
    preemptions by this job. The numbers are new values of the job's columns.
    """

    again: bool
    outcome: Outcome
    text: str = ""
    held: str = ""
    pause: timedelta | None = None
    cool_down: timedelta = timedelta()
    failures: int = 0
    requeues: int = 0
    memory_bytes: int | None = None
    host_memory_bytes: int | None = None


def decide(
    end: AttemptEnd,
    past: RetryHistory,
    largest_bytes: int | None = None,
) -> RetryDecision:
    """largest_bytes: the memory of the largest GPU, or of the host; no job declares more."""
    if end.outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.TIMED_OUT):
        return _over(end.outcome, past)
    if end.yielded or _leaves_unasked(end, past):
        return _yielded(end, past)
    if end.cause is FailureCause.MACHINE:
        return _lost(end, past)
    if past.failures < past.retries:
        return _retried(end, past, largest_bytes)
    return _over(end.outcome, past)


MEMORY_PROBLEMS = {
    FailureCause.GPU_MEMORY: "It ran out of GPU memory.",
    FailureCause.MEMORY: "It was killed because it ran out of memory.",
}


def pause(times: int, job_id: int) -> timedelta:
    """Before the next try after `times` failures: the same for the same job and number."""
    # 2^30 first pauses are longer than any longest one.
    seconds = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(max(times, 1) - 1, 30))
    spread = crc32(f"{job_id}.{times}".encode()) / 2**31 - 1
    return timedelta(seconds=seconds * (1 + spread * JITTER_PCT / 100))


def reports_gpu_memory(tail: bytes) -> bool:
    """Whether the end of a log says that a GPU's memory was too small."""
    return _GPU_MEMORY.search(tail) is not None


def _over(outcome: Outcome, past: RetryHistory, text: str = "") -> RetryDecision:
    return RetryDecision(
        again=False,
        outcome=outcome,
        text=text,
        failures=past.failures,
        requeues=past.requeues,
        memory_bytes=past.memory_bytes,
        host_memory_bytes=past.host_memory_bytes,
    )


def _leaves_unasked(end: AttemptEnd, past: RetryHistory) -> bool:
    """It says that it saved its work, and may expect to be run again: at a shutdown, say."""
    return end.exit_code == SAVED_EXIT_CODE and (past.preemptible or past.requeue)


def _yielded(end: AttemptEnd, past: RetryHistory) -> RetryDecision:
    has_saved = end.exit_code == SAVED_EXIT_CODE
    if not has_saved and not past.requeue:
        return _over(Outcome.PREEMPTED, past, _unsaved(end))
    counts = end.counts and (end.yielded or end.cause is not FailureCause.MACHINE)
    times = past.requeues + counts
    is_held = counts and times > MOST_REQUEUES
    why = "had to make room for others" if end.yielded else "left by itself to be run again"
    return RetryDecision(
        again=True,
        outcome=Outcome.PREEMPTED,
        text="it saved its work" if has_saved else "it begins anew",
        held=f"It {why} {_times(times)}." if is_held else "",
        cool_down=COOL_DOWN,
        failures=past.failures,
        requeues=times,
        memory_bytes=past.memory_bytes,
        host_memory_bytes=past.host_memory_bytes,
    )


def _unsaved(end: AttemptEnd) -> str:
    """How a job left its GPU that did not say that it saved its work."""
    if end.signal is not None:
        return (
            f"It had to leave its GPU and was ended by signal {_signal(end.signal)} before it had"
            " saved its work and exited by itself."
        )
    if end.exit_code is None:
        return "It had to leave its GPU, and how it ended is unknown."
    return (
        f"It had to leave its GPU and ended with exit code {end.exit_code}."
        f" Exit code {SAVED_EXIT_CODE} would have said that it saved its work and is to run again."
    )


def _signal(number: int) -> str:
    name = SIGNAL_NAMES.get(number)
    return f"{number} ({name})" if name else str(number)


def _lost(end: AttemptEnd, past: RetryHistory) -> RetryDecision:
    goes_on = past.preemptible and end.has_saved
    if not (past.requeue or past.retries or goes_on):
        return _over(end.outcome, past)
    # Back-off is against a job that is lost again and again without any result.
    times = 0 if end.has_delivered else past.lost + 1
    return RetryDecision(
        again=True,
        outcome=end.outcome,
        text="the machine lost it",
        held=f"The machine lost it {_times(times)}." if times > MOST_LOST else "",
        pause=pause(times, past.job_id) if times > 1 else None,
        failures=past.failures,
        requeues=past.requeues,
        memory_bytes=past.memory_bytes,
        host_memory_bytes=past.host_memory_bytes,
    )


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _retried(end: AttemptEnd, past: RetryHistory, largest_bytes: int | None) -> RetryDecision:
    times = past.failures + 1
    memory = past.memory_bytes
    text = f"it failed, and has {past.retries - past.failures} of {past.retries} retries left"
    if end.cause is FailureCause.GPU_MEMORY and memory is not None:
        more = int(memory * MEMORY_FACTOR)
        memory = more if largest_bytes is None else max(memory, min(more, largest_bytes))
        text = f"it ran out of GPU memory, and declares {memory / GIB:.4g} GiB now"
    host_memory = past.host_memory_bytes
    if end.cause is FailureCause.MEMORY and host_memory is not None:
        more = int(host_memory * MEMORY_FACTOR)
        most = more if largest_bytes is None else min(more, largest_bytes)
        host_memory = max(host_memory, most)
        text = f"it ran out of host memory, and declares {host_memory / GIB:.4g} GiB now"
    return RetryDecision(
        again=True,
        outcome=end.outcome,
        text=text,
        pause=pause(times, past.job_id),
        failures=times,
        requeues=past.requeues,
        memory_bytes=memory,
        host_memory_bytes=host_memory,
    )


# Jobs of one program that fail in a row, shortly after their start.

MOST_LINES, LONGEST_LINE = 15, 300
SHELL = ("/bin/sh", "-c")


class CrashGuard(Struct, frozen=True):
    """Further jobs are held after `failures` quick failures in a row.

    quick: from the start to the failure.
    """

    failures: int = 3
    quick: timedelta = timedelta(seconds=30)


class EndedJob(Struct, frozen=True):
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


# Retention of the files and records of ended jobs.
#
# Files of jobs that wait, run or will run again are never deleted.


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Retention of the files and records of jobs."""

    # fmt: off
    days: float = threshold(90.0, "Files of ended jobs", unit="d", ge=1, le=3650,
        help="Retention period for logs and checkpoints.")
    disk_pct: float = threshold(20.0, "Maximum disk use", unit="%", ge=1, le=100,
        help="Share of the disk that files of ended jobs may take; the oldest are deleted first. "
             "100 = no limit.")
    least_days: float = threshold(7.0, "Minimum retention", unit="d", ge=0, le=3650,
        help="Files are kept for this time even above the maximum disk use.")
    record_days: float = threshold(365.0, "Records of ended jobs", unit="d", ge=1, le=7300,
        help="Jobs and their attempts are deleted after this time, once their files are gone. "
             "Usage and charges are kept.")
    # fmt: on

    def conflicts(self) -> dict[str, str]:
        problems = {}
        if self.least_days > self.days:
            problems["least_days"] = "it must not be longer than the retention period of the files"
        if self.record_days < self.days:
            problems["record_days"] = (
                "it must not be shorter than the retention period of the files"
            )
        return problems


class RetainedFiles(Struct, frozen=True):
    """The files of an ended job. size None = not measured yet."""

    job_id: int
    ended_at: datetime
    size: int | None = None


def select_expired(
    retained: Iterable[RetainedFiles],
    policy: RetentionPolicy,
    disk_bytes: int | None,
    now: datetime,
) -> list[RetainedFiles]:
    """Jobs whose files are to be deleted, oldest first. disk_bytes: disk size, None = unknown."""
    in_order = sorted(retained, key=lambda files: (files.ended_at, files.job_id))
    old, least = now - timedelta(days=policy.days), now - timedelta(days=policy.least_days)
    used = sum(files.size or 0 for files in in_order)
    limit = None
    if disk_bytes is not None and policy.disk_pct < 100:
        limit = disk_bytes * policy.disk_pct / 100
    expired = []
    for files in in_order:
        is_over = limit is not None and used > limit and bool(files.size)
        if files.ended_at <= old or (is_over and files.ended_at <= least):
            expired.append(files)
            used -= files.size or 0
    return expired


# Blockers that do not depend on GPUs: hold, begin time, back-off, dependency, array limit.


class Condition(Struct, frozen=True, kw_only=True):
    """Conditions of a waiting job. `held_by` "" = held by gpucoord.

    `refused`: why the last attempt could not start. `pending`: unmet dependencies; those in
    `arrays` refer to all jobs of an array.
    """

    id: int
    held: str = ""
    held_by: str = ""
    begin_at: datetime | None = None
    retry_at: datetime | None = None
    failures: int = 0
    refused: str = ""
    array: int | None = None
    array_limit: int | None = None
    pending: tuple[tuple[int, DependencyKind], ...] = ()
    arrays: frozenset[int] = frozenset()


def waits(
    conditions: Iterable[Condition],
    placed: Mapping[int, int],
    now: datetime,
    zone: str = "UTC",
) -> dict[int, tuple[Blocker, ...]]:
    """Blockers of the jobs that have some.

    `placed`: number of placed jobs of each array. The first ready jobs of an array take the places
    that its limit leaves, so job pass never starts more. `zone`: time zone of shown times.
    """
    blockers: dict[int, tuple[Blocker, ...]] = {}
    ready: dict[tuple[int, int], list[int]] = defaultdict(list)
    for job in conditions:
        if own := tuple(_own_blockers(job, now, zone)):
            blockers[job.id] = own
        elif job.array is not None and job.array_limit is not None:
            ready[job.array, job.array_limit].append(job.id)
    for (array, limit), ids in ready.items():
        reasons = (_array_limit(array, limit),)
        free = max(0, limit - placed.get(array, 0))
        blockers |= dict.fromkeys(sorted(ids)[free:], reasons)
    return blockers


def _own_blockers(job: Condition, now: datetime, zone: str) -> Iterable[Blocker]:
    if job.held:
        yield _held(job.held, job.held_by)
    if job.begin_at is not None and job.begin_at > now:
        yield _begins(job.begin_at, zone)
    if job.retry_at is not None and job.retry_at > now:
        yield _retries(job, job.retry_at, zone)
    for on, after in job.pending:
        yield _after(on, after, is_array=on in job.arrays)


def _held(reason: str, by: str) -> Blocker:
    code = BlockerCode.HELD if by else BlockerCode.TOO_MANY_REQUEUES
    facts = details(reason=reason)
    return Blocker(code=code, tier=Tier.PERSON, holder=by or None, details=facts)


def _array_limit(array: int, limit: int) -> Blocker:
    return Blocker(
        code=BlockerCode.ARRAY_LIMIT,
        tier=Tier.NOT_YET,
        array=array,
        requested="1 place",
        available=f"0 of {limit}",
        details=details(limit=limit),
    )


def _begins(at: datetime, zone: str) -> Blocker:
    return Blocker(
        code=BlockerCode.BEGIN_TIME,
        tier=Tier.NOT_YET,
        requested=at.isoformat(timespec="seconds"),
        until=at,
        details=details(zone=zone),
    )


def _retries(job: Condition, at: datetime, zone: str) -> Blocker:
    return Blocker(
        code=BlockerCode.BACKOFF,
        tier=Tier.NOT_YET,
        requested=at.isoformat(timespec="seconds"),
        until=at,
        details=details(failures=job.failures, refused=job.refused, zone=zone),
    )


@lru_cache(maxsize=100_000)
def _after(on: int, after: DependencyKind, *, is_array: bool) -> Blocker:
    return Blocker(
        code=BlockerCode.DEPENDENCY,
        tier=Tier.NOT_YET,
        array=on if is_array else None,
        jobs=() if is_array else (on,),
        requested=after.value,
    )


# How good the first predictions of starts were, by the runs known when they were made.


# From this number of runs on, their spread is known.
ENOUGH_RUNS = 5
PERIODS = {"24h": timedelta(hours=24), "30d": timedelta(days=30)}
LONGEST = max(PERIODS.values())


class RunsKnown(StrEnum):
    """How many earlier runs of the same owner and name a prediction could use."""

    NONE = "none"
    FEW = "few"
    ENOUGH = "enough"

    @classmethod
    def of(cls, runs: int) -> RunsKnown:
        if not runs:
            return cls.NONE
        return cls.FEW if runs < ENOUGH_RUNS else cls.ENOUGH


class PredictedStart(Struct, frozen=True):
    """The start of a job, and its first prediction. p90: None = it had only a median.

    runs: earlier runs of the same owner and name when the job was submitted.
    """

    started_at: datetime
    p50: datetime
    p90: datetime | None
    runs: int


class Calibration(Struct, frozen=True):
    """Predictions of the starts in a period. error: median of the difference to p50.

    before_p90: part of the starts before it, 0..1. None: no such start.
    """

    period: str
    runs: RunsKnown
    starts: int
    error: timedelta | None
    before_p90: float | None


def calibrations(starts: Iterable[PredictedStart], now: datetime) -> list[Calibration]:
    """By the number of known runs and by period."""
    past = [(RunsKnown.of(start.runs), start) for start in starts]
    return [
        _calibration(
            period, runs, [s for kind, s in past if kind is runs and now - s.started_at <= length]
        )
        for runs in RunsKnown
        for period, length in PERIODS.items()
    ]


def _calibration(period: str, runs: RunsKnown, starts: list[PredictedStart]) -> Calibration:
    errors = [abs(start.started_at - start.p50).total_seconds() for start in starts]
    is_before = [start.started_at <= start.p90 for start in starts if start.p90 is not None]
    return Calibration(
        period=period,
        runs=runs,
        starts=len(starts),
        error=timedelta(seconds=median(errors)) if errors else None,
        before_p90=sum(is_before) / len(is_before) if is_before else None,
    )
