"""Metrics of what holds starts back: deferrals, multipliers, the utilisation target, the mode."""

from __future__ import annotations

from datetime import datetime

from monitor.metric_families import Families
from scheduler import throttling
from scheduler.models import ModeState
from scheduler.policy.mode import Mode
from scheduler.policy.pressure import CLASSES


def add_metrics(into: Families, now: datetime) -> None:
    """What a silent controller once said is left out."""
    for host, at, allowed, memory in throttling.shown():
        if now - at > throttling.STALE_AFTER:
            continue
        for kind in CLASSES:
            deferral = memory.deferrals.get(kind)
            into.gauge(
                "gpucoord_starts_deferred",
                "1 while jobs of a priority class are deferred by load.",
                {"host": host, "class": kind.value},
                deferral is not None and deferral.holds,
            )
        what = "How many more jobs may be put beside others on GPUs; no sample: any number."
        into.gauge("gpucoord_starts_allowed", what, {"host": host}, allowed.starts)
        for uuid, part in allowed.multipliers.items():
            what = "What of a GPU quotas count with, 0 to 1; 0 where it is not ours."
            into.gauge("gpucoord_quota_multiplier", what, {"host": host, "gpu": uuid}, part)
    for row in ModeState.objects.order_by("host"):
        what = "1 while the mode is defensive."
        into.gauge("gpucoord_mode_defensive", what, {"host": row.host}, row.mode == Mode.DEFENSIVE)
