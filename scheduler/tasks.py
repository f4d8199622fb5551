"""Short tasks about jobs that run in the cluster's workers."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings
from django.utils import timezone

from scheduler.clearing import Clearer


def clear_files() -> int:
    """Take away what the jobs of this host left that ended long ago."""
    config = settings.CONFIG
    clearer = Clearer(config.node, Path(settings.DATA), config.checkpoints)
    return len(clearer.step(timezone.now()))
