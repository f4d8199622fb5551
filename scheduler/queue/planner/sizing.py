"""Policy: what an attempt used of its GPUs, and the GPU memory that the next such job needs.

A job's fingerprint stands for its owner and its command without the numbers in it, so that
`train.py --epochs 3` and `train.py --epochs 5` are the same kind of job. The suggested memory is
the 95th percentile of the peaks of the newest runs plus a margin, separately for each GPU model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from msgspec import Struct

from monitor.facts.thresholds import threshold
from scheduler.facts.units import size

# How much of its GPUs an attempt used, and what that says about the next one.

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


class GpuMinute(Struct, frozen=True, kw_only=True):
    """Use of one GPU by all processes of an attempt in the minute that begins at `t`.

    held_s: the longest time that one of them was on the GPU. known_s: the part of it with measured
    use. memory_bytes: the sum of the processes' peaks; None = not measured for each of them.
    """

    gpu_uuid: str
    t: int
    sm_s: float
    held_s: float
    known_s: float
    memory_bytes: int | None
    joules: float | None


class GpuUse(Struct, frozen=True, kw_only=True):
    """GPU use of an attempt. None = not known.

    gpu_s: seconds for which it had its GPUs, times their number. sm_s: GPU-seconds used.
    peak_memory_bytes: on the GPU where it took most. mean_pct, p95_pct: utilisation of a GPU, over
    the whole time and by minutes. coverage_pct: the measured part of the time that its processes
    were on the GPUs.
    """

    gpu_s: float
    sm_s: float | None = None
    coverage_pct: float | None = None
    mean_pct: float | None = None
    p95_pct: float | None = None
    peak_memory_bytes: int | None = None
    joules: float | None = None


class MemorySuggestion(Struct, frozen=True, kw_only=True):
    """GPU memory for a job, learned from earlier runs. peak_bytes: the highest of these runs."""

    memory_bytes: int
    peak_bytes: int
    runs: int


def fingerprint(owner_id: int, argv: Sequence[str]) -> str:
    """A text of 40 characters for the owner and the command without its numbers."""
    words = (_NUMBER.sub("#", word) for word in argv)
    text = "\0".join((str(owner_id), *words))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:40]


# A total with less measured time tells nothing about a job.
LEAST_COVERAGE = 0.8
# Shorter parts of a minute are no sample of its utilisation.
SHORTEST_S = 10.0
# A hint about a smaller request must save this part of it.
WORTH_SAVING = 0.2
MIB, GIB = 1024**2, 1024**3
HOST_RUNS, LEAST_HOST_RUNS = 20, 3
SHORTEST_RUN_S = 10.0
HOST_MARGIN, HOST_STEP_BYTES = 1.1, 256 * MIB


# The newest successful runs that count. With fewer than the second number, nothing is suggested.
RUNS, LEAST_RUNS = 20, 5
# The suggestion is this percentile of their peaks, and this margin in %.
PERCENTILE, MARGIN_PCT = 95.0, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingPolicy:
    """GPU memory of jobs that declare none, learned from earlier runs."""

    # fmt: off
    enabled: bool = threshold(True, "Memory from history",
        "A job that declares no GPU memory gets what its owner's earlier runs of the same command "
        "needed on this GPU model. Without such runs it stays undeclared.")
    # fmt: on


def summarise(minutes: Sequence[GpuMinute], gpu_s: float) -> GpuUse:
    """Use of an attempt; unknown values are None. gpu_s: as of GpuUse."""
    held_s = sum(minute.held_s for minute in minutes)
    if not minutes or held_s <= 0:
        return GpuUse(gpu_s=gpu_s)
    coverage = min(1.0, sum(minute.known_s for minute in minutes) / held_s)
    is_known = coverage >= LEAST_COVERAGE
    sm_s = sum(minute.sm_s for minute in minutes)
    joules = [minute.joules for minute in minutes if minute.joules is not None]
    peaks = [minute.memory_bytes for minute in minutes if minute.memory_bytes is not None]
    return GpuUse(
        gpu_s=gpu_s,
        sm_s=sm_s if is_known else None,
        coverage_pct=100 * coverage,
        mean_pct=min(100.0, 100 * sm_s / gpu_s) if is_known and gpu_s > 0 else None,
        p95_pct=_p95_pct(minutes) if is_known else None,
        peak_memory_bytes=max(peaks, default=None),
        joules=sum(joules) if len(joules) == len(minutes) else None,
    )


def _p95_pct(minutes: Iterable[GpuMinute]) -> float | None:
    samples = [
        100 * minute.sm_s / minute.known_s
        for minute in minutes
        if minute.known_s >= max(SHORTEST_S, LEAST_COVERAGE * minute.held_s)
    ]
    return min(100.0, nearest_rank(samples, 95.0)) if samples else None


def nearest_rank(values: Iterable[float], pct: float) -> float:
    """The smallest of at least one value that `pct` percent of the values do not exceed."""
    ranked = sorted(values)
    return ranked[max(1, ceil(len(ranked) * pct / 100)) - 1]


def suggest(
    peaks: Sequence[int], policy: SizingPolicy, most_bytes: int | None
) -> MemorySuggestion | None:
    """`peaks`: of runs on one GPU model, newest first. None: too few.

    most_bytes: the memory of such a GPU; all runs fitted into it.
    """
    newest = peaks[:RUNS]
    if not policy.enabled or len(newest) < LEAST_RUNS:
        return None
    needed = nearest_rank(newest, PERCENTILE) * (1 + MARGIN_PCT / 100)
    memory_bytes = max(1, ceil(needed / MIB)) * MIB
    if most_bytes is not None:
        memory_bytes = min(memory_bytes, most_bytes)
    return MemorySuggestion(memory_bytes=memory_bytes, peak_bytes=max(newest), runs=len(newest))


class HostRun(Struct, frozen=True, kw_only=True):
    """Use of the host by an attempt. peak_bytes: as of the runner's result; None = unknown."""

    took_s: float
    peak_bytes: int | None
    cpu_s: float | None


def host_needs(runs: Sequence[HostRun]) -> tuple[int | None, float | None]:
    """Host memory and CPUs of such a job, from runs newest first; None = too few runs tell.

    The 90th percentile of the newest runs: of their peaks with a margin, and of their mean CPUs.
    Short runs tell little: they are mostly start and end.
    """
    newest = [run for run in runs if run.took_s >= SHORTEST_RUN_S][:HOST_RUNS]
    peaks = [run.peak_bytes for run in newest if run.peak_bytes]
    cpus = [run.cpu_s / run.took_s for run in newest if run.cpu_s is not None]
    memory = nearest_rank(peaks, 90.0) * HOST_MARGIN if len(peaks) >= LEAST_HOST_RUNS else None
    mean = nearest_rank(cpus, 90.0) if len(cpus) >= LEAST_HOST_RUNS else None
    # Coarse steps: jobs with equal needs share the work of a plan.
    return (
        None if memory is None else ceil(memory / HOST_STEP_BYTES) * HOST_STEP_BYTES,
        None if mean is None else ceil(mean * 10) / 10,
    )


def together(
    by_model: Mapping[str, MemorySuggestion | None],
) -> MemorySuggestion | None:
    """For a job that may run on any of these models: enough for each. None: one is unknown."""
    suggestions = [each for each in by_model.values() if each is not None]
    if not suggestions or len(suggestions) < len(by_model):
        return None
    return max(suggestions, key=lambda each: each.memory_bytes)


def sentence(suggestion: MemorySuggestion) -> str:
    runs = f"last {suggestion.runs} runs" if suggestion.runs > 1 else "last run"
    return (
        f"Your {runs} of this command peaked at {size(suggestion.peak_bytes)} of GPU memory;"
        f" {size(suggestion.memory_bytes)} is enough."
    )


def right_size(requested_bytes: int | None, peak_bytes: int | None) -> str:
    """A smaller request that would have been enough; "" if the request fits or is unknown."""
    if requested_bytes is None or not peak_bytes:
        return ""
    enough = ceil(peak_bytes * (1 + MARGIN_PCT / 100) / GIB) * GIB
    if requested_bytes - enough < max(GIB, WORTH_SAVING * requested_bytes):
        return ""
    return f"A request of {size(enough)} would have been enough."


def efficiency(use: GpuUse, requested_bytes: int | None) -> str:
    """Request and use in one line; "" when nothing is known."""
    parts = []
    if use.peak_memory_bytes is not None:
        peak = f"peak {size(use.peak_memory_bytes)}"
        requested = (
            f"requested {size(requested_bytes)}" if requested_bytes else "no memory requested"
        )
        parts.append(f"{requested}, {peak}")
    if use.mean_pct is not None:
        parts.append(f"GPU {use.mean_pct:.0f} % used")
    text = "; ".join(parts)
    return text[:1].upper() + text[1:] + "." if text else ""
