"""Waiting jobs of somebody whose account was switched off start only when an operator says so."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.contrib.auth.models import User
from django.db.models.signals import post_save
from django.utils import timezone

from scheduler import holding


def listen() -> None:
    post_save.connect(_saved, sender=User, dispatch_uid="gpucoord.leavers")


def _saved(instance: User, created: bool, update_fields: Collection[str] | None, **_: Any) -> None:
    might_be_off = update_fields is None or "is_active" in update_fields
    if might_be_off and not created and not instance.is_active:
        holding.hold_all_of(instance, timezone.now())
