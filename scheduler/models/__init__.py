from __future__ import annotations

from scheduler.models.attempts import Attempt
from scheduler.models.jobs import Job, JobDependency
from scheduler.models.means import Means
from scheduler.models.quotas import Quota
from scheduler.models.shares import GpuDay, SharedOut, UsedShare
from scheduler.models.throttling import ModeState, ThrottleState
from scheduler.models.turns import PlanTurn
from scheduler.models.windows import TimeWindow
from scheduler.models.yields import KeptGpu, YieldRequest

__all__ = [
    "Attempt",
    "GpuDay",
    "Job",
    "JobDependency",
    "KeptGpu",
    "Means",
    "ModeState",
    "PlanTurn",
    "Quota",
    "SharedOut",
    "ThrottleState",
    "TimeWindow",
    "UsedShare",
    "YieldRequest",
]
