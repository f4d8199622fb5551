from __future__ import annotations

from scheduler.models.attempts import Attempt
from scheduler.models.jobs import Job, JobDependency
from scheduler.models.yields import KeptGpu, YieldRequest

__all__ = ["Attempt", "Job", "JobDependency", "KeptGpu", "YieldRequest"]
