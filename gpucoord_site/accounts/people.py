"""Steps: add users, those of login services too, and invite them to set a password."""

from __future__ import annotations

import logging
import pwd
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.auth.tokens import default_token_generator
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.http import HttpRequest
from django.urls import reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode
from msgspec import Struct

from gpucoord_site.models import ExternalLogin
from monitor.facts.accounts import FIRST_USER_UID
from monitor.journal.rows import audit
from monitor.owners import rows
from monitor.pages.requests import InvalidInput
from scheduler.facts.language_models import OWNER
from scheduler.limits.quotas import rows as quotas

logger = logging.getLogger(__name__)
ADDED = "added by an operator"
NO_PERSON = f"The user {OWNER} stands for model services, so it cannot log in."


class Invitation(Struct, frozen=True):
    """path: of the page that sets the password, once and until `expires_at`."""

    path: str
    expires_at: datetime


class Invited(Struct, frozen=True):
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
    user = _new(name, now)
    user.is_staff = is_operator
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


def _new(name: str, now: datetime) -> User:
    """Not saved yet. It has no password, and its OS account is assigned by the caller."""
    user = User(username=name, date_joined=now)
    user.set_unusable_password()
    user.has_listed_account = True  # type: ignore[attr-defined]
    return user


# Users of login services. A name that exists here is never taken over by an equal name there.


class NotAccepted(Exception):
    """The person gets no user here; the message says why."""


def external_user(provider: str, subject: str) -> User | None:
    """The user of this person; None: their first login."""
    logins = ExternalLogin.objects.select_related("user")
    row = logins.filter(provider=provider, subject=subject).first()
    return None if row is None else row.user


def create_external(
    provider: str, subject: str, username: str, now: datetime, *, account: str | None
) -> User:
    """A new user for this person. account: their OS account, None = an operator assigns it.

    Raises NotAccepted, above all if a user with this name exists.
    """
    try:
        UnicodeUsernameValidator()(username)
    except ValidationError:
        raise NotAccepted(f"{username[:150]!r} can't be a user name") from None
    if username == OWNER:
        raise NotAccepted(f"the user {OWNER} stands for model services")
    if len(username) > 150 or not 0 < len(subject) <= 255:
        raise NotAccepted("the name or the subject is too long")
    user = _new(username, now)
    try:
        with transaction.atomic():
            user.save()
            ExternalLogin.objects.create(user=user, provider=provider, subject=subject)
            text = f"{username} was created at the first login by {provider}"
            audit.note("USER_CREATED", text, by=audit.GPUCOORD, now=now, subject=f"user {username}")
    except IntegrityError:
        raise NotAccepted(f"the user {username} exists already, and is not of {provider}") from None
    if account is not None:
        rows.assign(user, account, now, f"first login by {provider}"[:80])
    return user


def link_external(user: User, provider: str, subject: str) -> None:
    """From now on this person is that user."""
    ExternalLogin.objects.get_or_create(provider=provider, subject=subject, user=user)


def account_with_uid(name: str, uid: int | None) -> str | None:
    """The OS account of this name on this host if it has this uid; else None."""
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):
        return None
    is_same = entry.pw_name == name and entry.pw_uid == uid and entry.pw_uid >= FIRST_USER_UID
    return name if is_same else None


def log_refusal(provider: str, reason: object) -> None:
    about = {"kind": "EXTERNAL_LOGIN_REFUSED", "provider": provider}
    logger.warning("A login by %s was refused: %s", provider, reason, extra=about)
