"""Rows: tokens for REST and login links. Only their SHA-256 is stored."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from hashlib import sha256

from django.conf import settings
from django.contrib.auth.models import User
from django.db import OperationalError
from django.db.models import Q

from monitor.facts.accounts import ALL_SCOPES, TokenScope, scopes_of, scopes_text
from monitor.models import Agent, ApiToken, LoginLink
from monitor.runtime.rows.prepared import TEXT_MARK, PreparedQuery

MARK = "gpc_"
SHOWN = 12
LINK_LIVES = timedelta(seconds=60)
# A busy client would else write a row with each request.
USE_IS_NOTED_EVERY = timedelta(minutes=1)


def create_token(
    user: User,
    now: datetime,
    *,
    name: str = "",
    lives: timedelta | None = None,
    scopes: Iterable[TokenScope] = ALL_SCOPES,
    host: str = "",
    agent: Agent | None = None,
) -> tuple[ApiToken, str]:
    """Make a token for `user`; the text is nowhere to be had later. lives None = for ever.

    host: the only host on which it is valid; "" = on all. agent: who uses it.
    """
    text = MARK + secrets.token_urlsafe(32)
    row = ApiToken.objects.create(
        user=user,
        name=name,
        prefix=text[:SHOWN],
        digest=digest(text),
        created_at=now,
        expires_at=None if lives is None else now + lives,
        scopes=scopes_text({TokenScope.READ, *scopes}),
        host=host,
        agent=agent,
    )
    return row, text


def authenticate(text: str, now: datetime) -> User | None:
    """The row of this token; None when it is unknown, expired, or its user may not log in."""
    row = find(text, now)
    return None if row is None else row.user


_TOKENS = PreparedQuery(
    lambda hashed: ApiToken.objects.select_related("user", "agent").filter(digest=hashed), TEXT_MARK
)


def find(text: str, now: datetime) -> ApiToken | None:
    """The token with its user; None: unknown, expired, of another host, or the user is inactive."""
    hashed = digest(text)
    row = next(iter(_TOKENS.rows(hashed)), None)
    if row is None or not hmac.compare_digest(row.digest, hashed):
        return None
    if not row.user.is_active or (row.expires_at is not None and row.expires_at <= now):
        return None
    if row.host not in ("", settings.CONFIG.node):
        return None
    _note_use(row, now)
    return row


def user_within(row: ApiToken) -> User:
    """The token's user with the rights that its scopes leave. Don't save it.

    Without OPERATE, it has no rights of staff.
    """
    user = row.user
    if TokenScope.OPERATE not in scopes_of(row.scopes):
        user.is_staff = user.is_superuser = False
    return user


def revoke_all(user: User) -> int:
    """Delete the tokens and login links of a user. Returns how many tokens there were."""
    LoginLink.objects.filter(user=user).delete()
    return ApiToken.objects.filter(user=user).delete()[0]


def create_link(user: User, now: datetime) -> str:
    """The secret of a new login link, which is valid once, for LINK_LIVES."""
    text = secrets.token_urlsafe(32)
    LoginLink.objects.filter(expires_at__lte=now).delete()
    LoginLink.objects.create(user=user, digest=digest(text), expires_at=now + LINK_LIVES)
    return text


def owner_of_link(text: str, now: datetime) -> User | None:
    """The user of the link, which is not used up. None: as of `use_link`."""
    links = LoginLink.objects.select_related("user").filter(digest=digest(text), expires_at__gt=now)
    row = links.filter(user__is_active=True).first()
    return None if row is None else row.user


def use_link(text: str, now: datetime) -> User | None:
    """The user of the link, which is used up by this. None: unknown, used, expired or inactive."""
    row = LoginLink.objects.select_related("user").filter(digest=digest(text)).first()
    # Of two requests at once, one deletes the row.
    if row is None or not LoginLink.objects.filter(pk=row.pk).delete()[0]:
        return None
    return row.user if row.expires_at > now and row.user.is_active else None


def digest(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()


def _note_use(row: ApiToken, now: datetime) -> None:
    before = now - USE_IS_NOTED_EVERY
    if row.last_used_at is not None and row.last_used_at > before:
        return
    unnoted = Q(last_used_at=None) | Q(last_used_at__lte=before)
    # With a full disk nothing can be stored, but requests that only read are still answered.
    with suppress(OperationalError):
        ApiToken.objects.filter(unnoted, pk=row.pk).update(last_used_at=now)
