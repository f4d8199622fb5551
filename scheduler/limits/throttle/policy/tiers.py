"""Policy: how much of each GPU quotas may count with, beside others' load, hogs and the mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from monitor.facts.readings import GpuReading, ProcessReading
from monitor.facts.thresholds import percent, threshold
from monitor.gpus.policy.states import HELD_BYTES

# %: the load must fall this far below a threshold before the multiplier rises again.
MARGIN_PCT = 5.0
# Multipliers while the load of other users cannot be measured, and during overuse of the GPU.
UNKNOWN_MULTIPLIER, HOG_MULTIPLIER = 0.5, 0.1
# The multiplier is never less, except while a GPU is paused.
LEAST_MULTIPLIER = 0.1
# Seconds over which the load is averaged, and the % of them that must be known.
SMOOTH_S, COVERAGE_PCT = 60.0, 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptivePolicy:
    """Load tiers of a GPU, and the multiplier of each tier."""

    # fmt: off
    free_below_pct: float = percent(30.0, "Low load below",
        "Other users' load that leaves the whole GPU available. Multipliers reduce each user's "
        "share of a GPU while other users are on it, never on an empty GPU. Daily GPU-minutes are "
        "not scaled.")
    busy_above_pct: float = percent(70.0, "High load above",
        "Other users' load that leaves little of the GPU available.")
    middle_multiplier: float = threshold(0.5, "Multiplier at medium load", unit="×", ge=0, le=1)
    busy_multiplier: float = threshold(0.1, "Multiplier at high load", unit="×", ge=0, le=1)
    pause: bool = threshold(False, "Pause at high load",
        "Quotas on a GPU with high load are reduced to zero.")
    # fmt: on

    def conflicts(self) -> dict[str, str]:
        if self.free_below_pct < self.busy_above_pct:
            return {}
        return {"free_below_pct": "it must be below the value for high load"}


class LoadTier(StrEnum):
    """How much of a GPU others take."""

    FREE = "free"
    MIDDLE = "middle"
    BUSY = "busy"
    UNKNOWN = "unknown"


def external_pct(gpu: GpuReading, processes: Sequence[ProcessReading]) -> float | None:
    """GPU time of processes that are not jobs, in percent; None = unknown.

    If some of these are unknown, it is the use of the GPU minus that of jobs. A GPU that lists only
    jobs has no external load. A busy GPU that lists no processes is loaded by others.
    """
    foreign = [p.sm_pct for p in processes if p.job_ref is None]
    own = [p.sm_pct for p in processes if p.job_ref is not None]
    measured = [share for share in foreign if share is not None]
    if foreign and len(measured) == len(foreign):
        return min(100.0, sum(measured))
    if not foreign and (own or _is_empty(gpu)):
        return 0.0
    measured_own = [share for share in own if share is not None]
    if gpu.utilization_pct is None or len(measured_own) < len(own):
        return None
    return min(100.0, max(sum(measured), gpu.utilization_pct - sum(measured_own)))


def _is_empty(gpu: GpuReading) -> bool:
    """A process without memory on a GPU cannot load it."""
    used = gpu.memory_used_bytes
    return not gpu.utilization_pct and used is not None and used < HELD_BYTES


def tier(load: float | None, before: LoadTier | None, policy: AdaptivePolicy) -> LoadTier:
    """`load`: the smoothed one. A tier is left downwards only by a margin."""
    if load is None:
        return LoadTier.UNKNOWN
    margin = MARGIN_PCT
    busy_above = policy.busy_above_pct - (margin if before is LoadTier.BUSY else 0)
    was_more = before in (LoadTier.BUSY, LoadTier.MIDDLE)
    free_below = policy.free_below_pct - (margin if was_more else 0)
    if load > busy_above:
        return LoadTier.BUSY
    return LoadTier.FREE if load < free_below else LoadTier.MIDDLE


def multiplier(
    load: LoadTier, policy: AdaptivePolicy, *, hog: bool = False, mode: float = 1.0
) -> float:
    """The usable part of a GPU, 0..1; at least the minimum, unless the GPU is paused."""
    if load is LoadTier.BUSY and policy.pause:
        return 0.0
    of_load = {
        LoadTier.FREE: 1.0,
        LoadTier.MIDDLE: policy.middle_multiplier,
        LoadTier.BUSY: policy.busy_multiplier,
        LoadTier.UNKNOWN: UNKNOWN_MULTIPLIER,
    }[load]
    product = of_load * (HOG_MULTIPLIER if hog else 1.0) * mode
    return min(1.0, max(LEAST_MULTIPLIER, product))
