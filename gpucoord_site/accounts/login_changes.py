"""Consequences of changes to users: open sockets check their login at once when it has ended."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.contrib.auth.models import User
from django.db.models.signals import post_delete, post_save
from django.utils import timezone

from gpucoord_site.models import UserSession
from monitor.models import ApiToken
from monitor.owners.accounts import rows
from monitor.pages.live.consumers import LOGINS
from monitor.runtime.rows.wakeups import wake
from scheduler.jobs.lifecycle.rows import changes as job_changes

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


# Consequences of creating or deactivating a user.


def listen_to_users() -> None:
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
            now, origin = timezone.now(), rows.SAME_NAME
            rows.assign(instance, instance.get_username(), now, origin)
        return
    might_be_off = update_fields is None or "is_active" in update_fields
    if might_be_off and not instance.is_active:
        job_changes.hold_all_of(instance, timezone.now())
        rows.revoke_all(instance)
