"""Rows: tokens for REST. A token is shown once, when it is made; only its SHA-256 is kept."""

from __future__ import annotations

import hmac
import secrets
from datetime import datetime, timedelta
from hashlib import sha256

from django.contrib.auth.models import User
from django.db.models import Q

from monitor.models import ApiToken

MARK = "gpc_"
SHOWN = 12
# A busy client would else write a row with each request.
USE_IS_NOTED_EVERY = timedelta(minutes=1)


def create_token(
    user: User, now: datetime, *, name: str = "", lives: timedelta | None = None
) -> tuple[ApiToken, str]:
    """Make a token for `user`; the text is nowhere to be had later. lives None = for ever."""
    text = MARK + secrets.token_urlsafe(32)
    row = ApiToken.objects.create(
        user=user,
        name=name,
        prefix=text[:SHOWN],
        digest=digest(text),
        created_at=now,
        expires_at=None if lives is None else now + lives,
    )
    return row, text


def authenticate(text: str, now: datetime) -> User | None:
    """Whose token this is; None when it is unknown, expired, or its user may not log in."""
    wanted = digest(text)
    row = ApiToken.objects.select_related("user").filter(digest=wanted).first()
    if row is None or not hmac.compare_digest(row.digest, wanted):
        return None
    if not row.user.is_active or (row.expires_at is not None and row.expires_at <= now):
        return None
    _note_use(row, now)
    return row.user


def digest(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()


def _note_use(row: ApiToken, now: datetime) -> None:
    before = now - USE_IS_NOTED_EVERY
    if row.last_used_at is not None and row.last_used_at > before:
        return
    unnoted = Q(last_used_at=None) | Q(last_used_at__lte=before)
    ApiToken.objects.filter(unnoted, pk=row.pk).update(last_used_at=now)
