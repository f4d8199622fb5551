"""Policy: how much of each GPU quotas may count with, beside others' load, hogs and the mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from monitor.facts.readings import GpuReading, ProcessReading
from monitor.facts.thresholds import percent, threshold
from monitor.gpus.policy.states import HELD_BYTES


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
    margin_pct: float = percent(5.0, "Hysteresis",
        "The load must fall this far below a threshold before the multiplier rises again.")
    middle_multiplier: float = threshold(0.5, "Multiplier at medium load", unit="×", ge=0, le=1)
    busy_multiplier: float = threshold(0.1, "Multiplier at high load", unit="×", ge=0, le=1)
    pause: bool = threshold(False, "Pause at high load",
        "Quotas on a GPU with high load are reduced to zero.")
    unknown_multiplier: float = threshold(0.5, "Multiplier at unknown load", unit="×", ge=0, le=1,
        help="Other users are on the GPU, but their load cannot be measured.")
    hog_multiplier: float = threshold(0.1, "Multiplier during overuse", unit="×", ge=0, le=1,
        help="On a GPU with an open overuse incident.")
    least_multiplier: float = threshold(0.1, "Minimum multiplier", unit="×", ge=0, le=1,
        help="Does not apply while paused.")
    smooth_s: float = threshold(60.0, "Load averaged over", unit="s", ge=5, le=3600)
    coverage_pct: float = percent(50.0, "Minimum coverage",
        "The load is unknown if readings cover less of that time.")
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
    margin = policy.margin_pct
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
        LoadTier.UNKNOWN: policy.unknown_multiplier,
    }[load]
    product = of_load * (policy.hog_multiplier if hog else 1.0) * mode
    return min(1.0, max(policy.least_multiplier, product))
