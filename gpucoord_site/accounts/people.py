"""Steps: add users, and invite them to set a password."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.auth.tokens import default_token_generator
from django.core.exceptions import ValidationError
from django.db import transaction
from django.urls import reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from monitor.api.input import InvalidInput
from monitor.journal.rows import audit
from monitor.owners.accounts.rows import os_accounts
from scheduler.limits.quotas import actions as quotas

ADDED = "added by an operator"


@dataclass(frozen=True, slots=True)
class Invitation:
    """path: of the page that sets the password, once and until `expires_at`."""

    path: str
    expires_at: datetime


@transaction.atomic
def add(name: str, account: str | None, like: User | None, *, by: str, now: datetime) -> User:
    """A new user without a password. account: its OS account, None = the one with its name.

    like: a user whose groups and own quota it gets; it gets no rights of staff.
    Raises InvalidInput.
    """
    user = User(username=name, date_joined=now)
    user.set_unusable_password()
    user.has_listed_account = True  # type: ignore[attr-defined]
    try:
        user.full_clean()
    except ValidationError as error:
        problems = error.message_dict.items()
        raise InvalidInput([("name", " ".join(texts)) for _, texts in problems]) from None
    user.save()
    if not os_accounts.assign(user, account or name, now, ADDED):
        raise InvalidInput([("account", f"{account or name} is the OS account of another user.")])
    if like is not None:
        user.groups.set(like.groups.all())
        quotas.copy(like, user, by=by, now=now)
    audit.note("USER_CREATED", f"{by} added {name}", by=by, now=now, subject=f"user {name}")
    return user


def invite(user: User, *, by: str, now: datetime) -> Invitation:
    """A link with which the user sets a password and logs in. Raises InvalidInput."""
    if not user.is_active:
        raise InvalidInput([("name", f"The user {user.get_username()} is deactivated.")])
    code = urlsafe_base64_encode(force_bytes(user.pk))
    path = reverse("invitation", args=[code, default_token_generator.make_token(user)])
    name = user.get_username()
    audit.note("USER_INVITED", f"{by} invited {name}", by=by, now=now, subject=f"user {name}")
    return Invitation(path, now + timedelta(seconds=settings.PASSWORD_RESET_TIMEOUT))
