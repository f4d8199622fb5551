"""Policy: what becomes of a job whose attempt has ended: it is over, or it is to run again.

saved its work (exit 85 after it was asked to yield)  again
the same unasked, of one that may be asked to yield   again
yielded otherwise                                     again if it asked for that (`requeue`)
the machine's doing: its runner or GPU lost, restart  again if it asked for that, or for retries,
                                                      or is preemptible and has saved its work;
                                                      uncounted, after a pause from the second on
out of GPU memory                                     while it has `retries` left, declaring more
any other failure of its own                          while it has `retries` left, after a pause
over its time limit, cancelled                        over: it would only happen again
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from zlib import crc32

from monitor.formats import GIB
from scheduler.jobs import Outcome
from scheduler.policy.preemption import PreemptionPolicy

SAVED = 85
_GPU_MEMORY = re.compile(
    rb"CUDA out of memory|(?<!lang\.)OutOfMemoryError|cudaErrorMemoryAllocation"
    rb"|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: Out of memory"
)


class Cause(StrEnum):
    """Why an attempt ended as it did: the job's own doing, too little memory of its GPUs or of the
    host, or the machine's.
    """

    OWN = "own"
    GPU_MEMORY = "GPU memory"
    MEMORY = "memory"
    MACHINE = "machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Pauses between tries, and how often."""

    first_pause_s: float = field(
        default=60.0,
        metadata={
            "label": "First pause",
            "help": "After a failure that is tried again; each further one doubles it.",
            "unit": "s",
            "least": 0,
        },
    )
    longest_pause_minutes: float = field(
        default=60.0, metadata={"label": "Longest pause", "unit": "min", "least": 0}
    )
    jitter_pct: float = field(
        default=10.0,
        metadata={
            "label": "Spread of the pauses",
            "help": "Jobs that failed together are not all tried again together.",
            "unit": "%",
            "least": 0,
            "most": 100,
        },
    )
    memory_factor: float = field(
        default=1.25,
        metadata={
            "label": "More memory",
            "help": "What a job declares is multiplied by this after it ran out of GPU memory.",
            "least": 1,
            "most": 10,
        },
    )
    most_lost: int = field(
        default=10,
        metadata={
            "label": "Most losses",
            "help": "A job that the machine lost more often is held until a person releases it.",
            "least": 0,
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What a job asked for, and what it has behind it. lost: how often the machine lost it."""

    job_id: int
    requeue: bool = False
    preemptible: bool = False
    retries: int = 0
    failures: int = 0
    requeues: int = 0
    lost: int = 0
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How its attempt ended. yielded: it had been told to; counts: that is one of the times.

    has_saved: it has left something to go on from.
    """

    outcome: Outcome
    exit_code: int | None = None
    cause: Cause = Cause.OWN
    yielded: bool = False
    counts: bool = True
    has_saved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What becomes of the job. outcome: of the attempt, and of the job unless it runs `again`.

    held: why it waits for a person. pause: before the next try. cool_down: for so long it preempts
    nobody. The numbers are its new ones.
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


def fate(
    end: End,
    past: Past,
    preemption: PreemptionPolicy,
    retry: RetryPolicy,
    largest_bytes: int | None = None,
) -> Fate:
    """largest_bytes: the memory of the largest GPU; no job declares more."""
    if end.outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.TIMED_OUT):
        return _over(end.outcome, past)
    if end.yielded or _leaves_unasked(end, past):
        return _yielded(end, past, preemption)
    if end.cause is Cause.MACHINE:
        return _lost(end, past, retry)
    if past.failures < past.retries:
        return _retried(end, past, retry, largest_bytes)
    return _over(end.outcome, past)


SAYS = {
    Cause.GPU_MEMORY: "It ran out of GPU memory.",
    Cause.MEMORY: "It was killed because it ran out of memory.",
}


def pause(times: int, job_id: int, policy: RetryPolicy) -> timedelta:
    """Before the next try after `times` failures: the same for the same job and number."""
    longest = policy.longest_pause_minutes * 60
    # 2^30 first pauses are longer than any longest one.
    seconds = min(longest, policy.first_pause_s * 2 ** min(max(times, 1) - 1, 30))
    spread = crc32(f"{job_id}.{times}".encode()) / 2**31 - 1
    return timedelta(seconds=seconds * (1 + spread * policy.jitter_pct / 100))


def tells_of_gpu_memory(tail: bytes) -> bool:
    """Whether the end of a log says that a GPU's memory was too small."""
    return _GPU_MEMORY.search(tail) is not None


def _over(outcome: Outcome, past: Past, text: str = "") -> Fate:
    return Fate(
        again=False,
        outcome=outcome,
        text=text,
        failures=past.failures,
        requeues=past.requeues,
        memory_bytes=past.memory_bytes,
    )


def _leaves_unasked(end: End, past: Past) -> bool:
    """It says that it saved its work, and may expect to be run again: at a shutdown, say."""
    return end.exit_code == SAVED and (past.preemptible or past.requeue)


def _yielded(end: End, past: Past, policy: PreemptionPolicy) -> Fate:
    has_saved = end.exit_code == SAVED
    if not has_saved and not past.requeue:
        text = "It had to leave its GPU without saying that it saved its work (exit code 85)."
        return _over(Outcome.PREEMPTED, past, text)
    counts = end.counts and (end.yielded or end.cause is not Cause.MACHINE)
    times = past.requeues + counts
    is_held = counts and times > policy.most_requeues
    why = "had to make room for others" if end.yielded else "left by itself to be run again"
    return Fate(
        again=True,
        outcome=Outcome.PREEMPTED,
        text="it saved its work" if has_saved else "it begins anew",
        held=f"It {why} {_times(times)}." if is_held else "",
        cool_down=timedelta(minutes=policy.cool_down_minutes),
        failures=past.failures,
        requeues=times,
        memory_bytes=past.memory_bytes,
    )


def _lost(end: End, past: Past, policy: RetryPolicy) -> Fate:
    goes_on = past.preemptible and end.has_saved
    if not (past.requeue or past.retries or goes_on):
        return _over(end.outcome, past)
    times = past.lost + 1
    return Fate(
        again=True,
        outcome=end.outcome,
        text="the machine lost it",
        held=f"The machine lost it {_times(times)}." if times > policy.most_lost else "",
        pause=pause(times, past.job_id, policy) if times > 1 else None,
        failures=past.failures,
        requeues=past.requeues,
        memory_bytes=past.memory_bytes,
    )


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _retried(end: End, past: Past, policy: RetryPolicy, largest_bytes: int | None) -> Fate:
    times = past.failures + 1
    memory = past.memory_bytes
    text = f"it failed, and has {past.retries - past.failures} of {past.retries} retries left"
    if end.cause is Cause.GPU_MEMORY and memory is not None:
        more = int(memory * policy.memory_factor)
        memory = more if largest_bytes is None else max(memory, min(more, largest_bytes))
        text = f"it ran out of GPU memory, and declares {memory / GIB:.4g} GiB now"
    return Fate(
        again=True,
        outcome=end.outcome,
        text=text,
        pause=pause(times, past.job_id, policy),
        failures=times,
        requeues=past.requeues,
        memory_bytes=memory,
    )
