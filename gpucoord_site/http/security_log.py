"""Log lines of logins, refusals and tokens. They contain no typed secret."""

from __future__ import annotations

import logging
from typing import Any

from axes.signals import user_locked_out
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.db.models.signals import post_delete
from django.http import HttpRequest

from monitor.models import ApiToken

logger = logging.getLogger(__name__)
# Passwords are sometimes typed into the wrong field, so an unknown user name is not logged.
NOBODY = "(no such user)"


def listen() -> None:
    """Connect the signals of logins, lockouts and tokens."""
    user_logged_in.connect(_logged_in, dispatch_uid="security_log")
    user_logged_out.connect(_logged_out, dispatch_uid="security_log")
    user_login_failed.connect(_login_failed, dispatch_uid="security_log")
    user_locked_out.connect(_locked_out, dispatch_uid="security_log")
    post_delete.connect(_token_revoked, sender=ApiToken, dispatch_uid="security_log")


def token_refused(request: HttpRequest) -> None:
    """A request carried a token that is unknown, expired or revoked."""
    where = {"address": _address(request), "path": request.path}
    logger.warning("A token was refused", extra={"kind": "TOKEN_REFUSED", **where})


def _logged_in(request: HttpRequest | None, user: User, **_: Any) -> None:
    about = {"kind": "LOGGED_IN", "user": user.get_username(), "address": _address(request)}
    logger.info("%s logged in", user.get_username(), extra=about)


def _logged_out(request: HttpRequest | None, user: User | None, **_: Any) -> None:
    if user is not None:
        about = {"kind": "LOGGED_OUT", "user": user.get_username(), "address": _address(request)}
        logger.info("%s logged out", user.get_username(), extra=about)


def _login_failed(
    credentials: dict[str, Any], request: HttpRequest | None = None, **_: Any
) -> None:
    user = _known(credentials.get("username"))
    about = {"kind": "LOGIN_FAILED", "user": user, "address": _address(request)}
    logger.warning("A login as %s failed", user, extra=about)


def _locked_out(request: HttpRequest, username: str | None, **_: Any) -> None:
    user = _known(username)
    about = {"kind": "LOGIN_PAUSED", "user": user, "address": _address(request)}
    logger.warning("Too many wrong passwords as %s: a pause", user, extra=about)


def _token_revoked(instance: ApiToken, **_: Any) -> None:
    owner = instance.user.get_username()
    about = {"kind": "TOKEN_REVOKED", "owner": owner, "number": instance.pk}
    logger.info("A token of %s was revoked", owner, extra=about)


def _known(username: str | None) -> str:
    """The name if a user has it; else an empty text."""
    name = (username or "").replace("\0", "\ufffd")
    return name if User.objects.filter(username=name).exists() else NOBODY


def _address(request: HttpRequest | None) -> str:
    return request.META.get("REMOTE_ADDR", "") if request is not None else ""
