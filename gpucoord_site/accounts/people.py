"""Steps: add users, and invite them to set a password."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.auth.tokens import default_token_generator
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest
from django.urls import reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from monitor.api import InvalidInput
from monitor.journal.rows import audit
from monitor.owners.accounts import rows
from scheduler.facts.language_models import OWNER
from scheduler.limits.quotas import rows as quotas

ADDED = "added by an operator"
NO_PERSON = f"The user {OWNER} stands for model services, so it cannot log in."


@dataclass(frozen=True, slots=True)
class Invitation:
    """path: of the page that sets the password, once and until `expires_at`."""

    path: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Invited:
    """A new user with the invitation."""

    user: User
    invitation: Invitation


@transaction.atomic
def add(
    name: str,
    account: str | None,
    like: User | None = None,
    *,
    is_operator: bool = False,
    by: str,
    now: datetime,
) -> User:
    """A new user without a password. account: its OS account, None = the one with its name.

    like: a user whose groups and own quota it gets, but no rights of staff. Raises InvalidInput.
    """
    if OWNER in (name, account):
        raise InvalidInput([("name", NO_PERSON)])
    if problem := rows.name_problem(account or name):
        raise InvalidInput([("account", problem)])
    user = User(username=name, date_joined=now, is_staff=is_operator)
    user.set_unusable_password()
    user.has_listed_account = True  # type: ignore[attr-defined]
    try:
        user.full_clean()
    except ValidationError as error:
        problems = error.message_dict.items()
        raise InvalidInput([("name", " ".join(texts)) for _, texts in problems]) from None
    user.save()
    if not rows.assign(user, account or name, now, ADDED):
        raise InvalidInput([("account", f"{account or name} is the OS account of another user.")])
    if like is not None:
        user.groups.set(like.groups.all())
        quotas.copy(like, user, by=by, now=now)
    text = f"{by} added {name}{' as an operator' if is_operator else ''}"
    audit.note("USER_CREATED", text, by=by, now=now, subject=f"user {name}")
    return user


@transaction.atomic
def add_all(
    names: Sequence[str],
    limits: Mapping[str, Any],
    *,
    is_operator: bool,
    by: str,
    now: datetime,
) -> list[Invited]:
    """Add a user for each OS account, with the same limits, and invite all of them.

    All are added, or none. limits: of their own quotas; those without a value are left out.
    Raises InvalidInput.
    """
    invited = []
    given = {name: value for name, value in limits.items() if value is not None}
    for name in names:
        try:
            user = add(name, None, is_operator=is_operator, by=by, now=now)
        except InvalidInput as error:
            texts = " ".join(text for _, text in error.errors)
            raise InvalidInput([("accounts", f"{name}: {texts}")]) from None
        if given:
            quotas.set_limits(user, given, by=by, now=now)
        invited.append(Invited(user, invite(user, by=by, now=now)))
    return invited


def set_access(user: User, *, is_operator: bool, is_active: bool, by: str, now: datetime) -> None:
    """Make a user an operator or not, and let the user log in or not.

    A user who may not log in loses all tokens, and their waiting jobs are held.
    """
    before = {"operator": user.is_staff, "active": user.is_active}
    after = {"operator": is_operator, "active": is_active}
    if before == after:
        return
    user.is_staff, user.is_active = is_operator, is_active
    name = user.get_username()
    with transaction.atomic():
        user.save(update_fields=["is_staff", "is_active"])
        text = f"{by} changed the access of {name}"
        audit.note("ACCESS_CHANGED", text, by=by, now=now, subject=f"user {name}",
                   before=before, after=after)  # fmt: skip


def invite(user: User, *, by: str, now: datetime) -> Invitation:
    """A link with which the user sets a password and logs in. Raises InvalidInput."""
    if user.get_username() == OWNER:
        raise InvalidInput([("name", NO_PERSON)])
    if not user.is_active:
        raise InvalidInput([("name", f"The user {user.get_username()} is deactivated.")])
    code = urlsafe_base64_encode(force_bytes(user.pk))
    path = reverse("invitation", args=[code, default_token_generator.make_token(user)])
    name = user.get_username()
    audit.note("USER_INVITED", f"{by} invited {name}", by=by, now=now, subject=f"user {name}")
    return Invitation(path, now + timedelta(seconds=settings.PASSWORD_RESET_TIMEOUT))


def invitation_url(invitation: Invitation, request: HttpRequest) -> str:
    """The whole address, for a message to the user."""
    base: str = settings.CONFIG.public_url or request.build_absolute_uri("/").rstrip("/")
    return base + invitation.path
