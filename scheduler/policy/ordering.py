"""Policy: who is served first."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from scheduler.jobs import QueuedJob


def ordered(queue: Iterable[QueuedJob]) -> list[QueuedJob]:
    """Priority 5 first, then who came first; the id decides between equals."""
    return sorted(queue, key=_key)


def _key(job: QueuedJob) -> tuple[int, datetime, int]:
    return (-job.priority, job.submitted_at, job.id)
