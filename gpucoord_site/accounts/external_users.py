"""Users of login services. A name that exists here already is never taken over by an equal name."""

from __future__ import annotations

import logging
import pwd
from datetime import datetime

from django.contrib.auth.models import User
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from gpucoord_site.models import ExternalLogin
from monitor.facts.accounts import FIRST_USER_UID
from monitor.journal.rows import audit
from monitor.owners.accounts import rows as os_accounts
from scheduler.facts.language_models import OWNER

logger = logging.getLogger(__name__)


class NotAccepted(Exception):
    """The person gets no user here; the message says why."""


def user_of(provider: str, subject: str) -> User | None:
    """The user of this person; None: their first login."""
    rows = ExternalLogin.objects.select_related("user")
    row = rows.filter(provider=provider, subject=subject).first()
    return None if row is None else row.user


def create(
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
    user = User(username=username, date_joined=now)
    user.set_unusable_password()
    user.has_listed_account = True  # type: ignore[attr-defined]
    try:
        with transaction.atomic():
            user.save()
            ExternalLogin.objects.create(user=user, provider=provider, subject=subject)
            text = f"{username} was created at the first login by {provider}"
            audit.note("USER_CREATED", text, by=audit.GPUCOORD, now=now, subject=f"user {username}")
    except IntegrityError:
        raise NotAccepted(f"the user {username} exists already, and is not of {provider}") from None
    if account is not None:
        os_accounts.assign(user, account, now, f"first login by {provider}"[:80])
    return user


def link(user: User, provider: str, subject: str) -> None:
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
