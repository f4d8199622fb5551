"""The demo's quotas, and what its people have used of the GPUs by now."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from django.contrib.auth.models import User

from scheduler.models import GpuDay, Quota, UsedShare
from scheduler.policy import budgets

GIB = 1024**3
# The part of all GPUs that each took lately.
TOOK = {"alice": 0.27, "bob": 0.16, "charlie": 0.05, "dana": 0.14, "erin": 0.09, "frank": 0.11}


def seed_quotas(users: Mapping[str, User], host: str, gpus: int, now: datetime, zone: str) -> None:
    """Limits that leave room for all that the demo runs."""
    Quota.objects.create(gpus=max(4, gpus // 2), queued=40, gpu_minutes=2880.0)
    Quota.objects.create(
        user=users["alice"], share_pct=30, gpus=max(2, gpus // 2), jobs=8,
        memory_bytes=gpus * 40 * GIB, queued=20, priority=4, gpu_minutes=4320.0,
    )  # fmt: skip
    Quota.objects.create(user=users["dana"], share_pct=20, gpus=2, gpu_minutes=1440.0)
    _seed_use(host, gpus, now, zone)


def _seed_use(host: str, gpus: int, now: datetime, zone: str) -> None:
    today = budgets.day(now, zone).from_at
    seconds = (now - today).total_seconds()
    UsedShare.objects.bulk_create(
        UsedShare(host=host, owner=name, usage=part) for name, part in TOOK.items()
    )
    GpuDay.objects.bulk_create(
        GpuDay(
            host=host,
            owner=name,
            from_at=today,
            job_s=0.6 * part * gpus * seconds,
            outside_s=0.1 * part * gpus * seconds,
        )
        for name, part in TOOK.items()
    )
