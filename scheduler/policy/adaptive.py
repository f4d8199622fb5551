"""Policy: how much of each GPU quotas may count with, beside others' load, hogs and the mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from monitor.policy.states import HELD_BYTES
from monitor.readings import GpuReading, ProcessReading

PCT = {"unit": "%", "least": 0, "most": 100}
PART = {"unit": "×", "least": 0, "most": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptivePolicy:
    """Tiers of others' load on a GPU, and what each leaves of it."""

    free_below_pct: float = field(
        default=30.0,
        metadata={"label": "Free below", "help": "Others' load that leaves all of a GPU.", **PCT},
    )
    busy_above_pct: float = field(
        default=70.0,
        metadata={"label": "Busy above", "help": "Others' load that leaves little.", **PCT},
    )
    margin_pct: float = field(
        default=5.0,
        metadata={
            "label": "Back only when lower by",
            "help": "So that load beside a threshold does not change the quota again and again.",
            **PCT,
        },
    )
    middle_multiplier: float = field(
        default=0.5, metadata={"label": "Multiplier between the two", "help": "", **PART}
    )
    busy_multiplier: float = field(
        default=0.1, metadata={"label": "Multiplier when busy", "help": "", **PART}
    )
    pause: bool = field(
        default=False,
        metadata={"label": "Pause when busy", "help": "A busy GPU counts as nothing at all."},
    )
    unknown_multiplier: float = field(
        default=0.5,
        metadata={
            "label": "Multiplier when unknown",
            "help": "Others are on the GPU, and nobody can tell how much of it they take.",
            **PART,
        },
    )
    hog_multiplier: float = field(
        default=0.1,
        metadata={"label": "Multiplier beside a hog", "help": "On the GPU that it is on.", **PART},
    )
    least_multiplier: float = field(
        default=0.1,
        metadata={"label": "Never less than", "help": "Except when paused.", **PART},
    )
    smooth_s: float = field(
        default=60.0,
        metadata={"label": "Load is a mean of", "help": "", "unit": "s", "least": 5, "most": 3600},
    )
    coverage_pct: float = field(
        default=50.0,
        metadata={"label": "Known if at least", "help": "Of that time.", **PCT},
    )

    def conflicts(self) -> dict[str, str]:
        if self.free_below_pct < self.busy_above_pct:
            return {}
        return {"free_below_pct": "it must be below what counts as busy."}


class LoadTier(StrEnum):
    """How much of a GPU others take."""

    FREE = "free"
    MIDDLE = "middle"
    BUSY = "busy"
    UNKNOWN = "unknown"


def external_pct(gpu: GpuReading, processes: Sequence[ProcessReading]) -> float | None:
    """What processes that are no jobs of ours take of the GPU's time now; None = unknown.

    Where not all of them are known it is what our own leave of the whole. A GPU on which nobody
    but our jobs is listed has no load of others; one that names nobody though it is used is
    loaded by others.
    """
    foreign = [p.sm_pct for p in processes if p.job_ref is None]
    own = [p.sm_pct for p in processes if p.job_ref is not None]
    known = [share for share in foreign if share is not None]
    if foreign and len(known) == len(foreign):
        return min(100.0, sum(known))
    if not foreign and (own or _is_empty(gpu)):
        return 0.0
    mine = [share for share in own if share is not None]
    if gpu.utilization_pct is None or len(mine) < len(own):
        return None
    return min(100.0, max(sum(known), gpu.utilization_pct - sum(mine)))


def _is_empty(gpu: GpuReading) -> bool:
    """Nobody can load a GPU without memory on it."""
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
    """What may be used of a GPU, 0..1. Never less than the least, unless it is paused."""
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
