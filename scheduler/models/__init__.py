from __future__ import annotations

from scheduler.models.attempts import Attempt
from scheduler.models.jobs import Job, JobDependency

__all__ = ["Attempt", "Job", "JobDependency"]
