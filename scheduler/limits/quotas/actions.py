"""Steps: changes of quotas by operators. Each change is audited."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from monitor.journal.rows import audit
from scheduler.models import Quota

# All but whose quota it is.
LIMITS = (
    "share_pct",
    "gpu_minutes",
    "gpus",
    "jobs",
    "memory_bytes",
    "queued",
    "share_is_limit",
    "reserved_pct",
    "gpu_share_pct",
    "priority",
    "prompts",
    "prompt_tokens",
    "exclusive_batches",
)


def save(quota: Quota, *, by: str, now: datetime) -> None:
    """Store a new or changed quota."""
    before = Quota.objects.filter(pk=quota.pk).first() if quota.pk else None
    with transaction.atomic():
        quota.save()
        action, word = ("QUOTA_CHANGED", "changed") if before else ("QUOTA_SET", "set")
        _record(action, word, quota, _values(before) if before else None, _values(quota), by, now)


def remove(quota: Quota, *, by: str, now: datetime) -> None:
    with transaction.atomic():
        _record("QUOTA_REMOVED", "removed", quota, _values(quota), None, by, now)
        quota.delete()


@transaction.atomic
def set_limits(user: User, limits: Mapping[str, Any], *, by: str, now: datetime) -> Quota:
    """Change limits of the user's own quota, which is made if there is none; None = no limit.

    Raises ValidationError.
    """
    quota = Quota.objects.select_for_update().filter(user=user).first() or Quota(user=user)
    for name, value in limits.items():
        setattr(quota, name, value)
    quota.full_clean()
    save(quota, by=by, now=now)
    return quota


def copy(source: User, target: User, *, by: str, now: datetime) -> Quota | None:
    """Give a user the limits of another user's own quota. None: the other has none."""
    quota = Quota.objects.filter(user=source).first()
    if quota is None:
        return None
    return set_limits(target, _values(quota), by=by, now=now)


def _values(quota: Quota) -> dict[str, Any]:
    return {name: getattr(quota, name) for name in LIMITS}


def _record(
    action: str, word: str, quota: Quota, before: Any, after: Any, by: str, now: datetime
) -> None:
    text = f"{by} {word} the quota of {quota.subject}"
    subject = f"quota of {quota.subject}"
    audit.note(action, text, by=by, now=now, subject=subject, before=before, after=after)
