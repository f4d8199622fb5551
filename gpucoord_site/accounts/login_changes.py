"""Tells open sockets that a login of their user has ended, so that they check it at once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.contrib.auth.models import User
from django.db.models.signals import post_delete, post_save
from django.utils import timezone

from gpucoord_site.models import UserSession
from monitor.models import ApiToken
from monitor.pages.live.socket import LOGINS
from monitor.runtime.rows.wakeups import wake

# Fields of a user on which logins depend.
DECISIVE = {"is_active", "password"}


def listen() -> None:
    """Logouts delete a session, and a new password gives other sessions a wrong hash."""
    post_delete.connect(_session_ended, sender=UserSession, dispatch_uid="login_changes")
    post_delete.connect(_token_revoked, sender=ApiToken, dispatch_uid="login_changes")
    post_save.connect(_user_changed, sender=User, dispatch_uid="login_changes")


def _session_ended(instance: UserSession, **_: Any) -> None:
    if instance.user_id is not None and instance.expire_date > timezone.now():
        _tell(instance.user_id)


def _token_revoked(instance: ApiToken, **_: Any) -> None:
    """A token that is deleted after it expired ends nothing."""
    if instance.expires_at is None or instance.expires_at > timezone.now():
        _tell(instance.user_id)


def _user_changed(
    instance: User, created: bool, update_fields: Collection[str] | None, **_: Any
) -> None:
    if not created and (update_fields is None or DECISIVE.intersection(update_fields)):
        _tell(instance.pk)


def _tell(user_id: int) -> None:
    wake(LOGINS, str(user_id).encode())
