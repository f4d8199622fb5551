"""Short tasks about jobs that run in the cluster's workers."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings
from django.utils import timezone

from scheduler.dispatch.steps import preview
from scheduler.lifecycle.rows import predictions
from scheduler.lifecycle.steps import job_files
from scheduler.lifecycle.steps.job_files import Clearer


def predict_starts() -> int:
    """Store when the waiting jobs are predicted to start."""
    now = timezone.now()
    return predictions.store(preview.estimates(now), now)


def clear_files() -> int:
    """Delete files of jobs of this host whose retention has expired."""
    config = settings.CONFIG
    job_files.forget(Path(settings.DATA), config.node)
    clearer = Clearer(config.node, Path(settings.DATA), config.checkpoints)
    return len(clearer.step(timezone.now()))
