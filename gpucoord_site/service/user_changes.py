"""Consequences of creating or deactivating a user."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.contrib.auth.models import User
from django.db.models.signals import post_save
from django.utils import timezone

from monitor.owners.accounts.rows import os_accounts, tokens
from scheduler.jobs.lifecycle.rows import changes as job_changes


def listen() -> None:
    post_save.connect(_saved, sender=User, dispatch_uid="gpucoord.leavers")


def _saved(
    instance: User,
    created: bool,
    update_fields: Collection[str] | None,
    raw: bool = False,
    **_: Any,
) -> None:
    """Deactivated: hold the queued jobs until an operator releases them, and revoke the tokens.

    Created: list the OS account with the user's name, unless the creator decides about that.
    """
    if created:
        if not raw and not getattr(instance, "has_listed_account", False):
            now, origin = timezone.now(), os_accounts.SAME_NAME
            os_accounts.assign(instance, instance.get_username(), now, origin)
        return
    might_be_off = update_fields is None or "is_active" in update_fields
    if might_be_off and not instance.is_active:
        job_changes.hold_all_of(instance, timezone.now())
        tokens.revoke_all(instance)
