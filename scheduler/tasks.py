"""Short tasks about jobs that run in the cluster's workers."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings
from django.utils import timezone

from monitor.runtime.rows.extensions import parts
from scheduler.dispatch.steps import preview
from scheduler.jobs import steps
from scheduler.jobs.rows import durations
from scheduler.jobs.steps import Clearer


def predict_starts() -> int:
    """Store when the waiting jobs are predicted to start."""
    now = timezone.now()
    return durations.store(preview.estimates(now), now)


def clear_files() -> int:
    """Delete files of jobs and batches of this host whose retention has expired."""
    config = settings.CONFIG
    data = Path(settings.DATA)
    steps.forget(data, config.node)
    for clear in parts("scheduler.submission.batches.step:clear"):
        clear(data, config.checkpoints)
    clearer = Clearer(config.node, data, config.checkpoints)
    return len(clearer.step(timezone.now()))


def clean_disks() -> int:
    """Work on the next clean-up of this host; returns the number of files deleted so far."""
    from scheduler.disk.actions import Cleaner

    config = settings.CONFIG
    run = Cleaner(config.node, Path(settings.DATA), config.checkpoints).step(timezone.now())
    return run.figures.get("deleted", 0) if run is not None else 0
