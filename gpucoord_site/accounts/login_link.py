"""Logins by a link: of `gpucoord login`, and of an invitation.

A web site could send browsers to a link of its author, whose user they would then act as. So a
browser that comes from another site, or is logged in as another user, is asked first.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import login
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import SetPasswordForm
from django.contrib.auth.models import User
from django.contrib.auth.views import PasswordResetConfirmView
from django.db.models.signals import post_delete, post_save
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse_lazy
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from gpucoord_site.models import UserSession
from monitor.journal.rows import audit
from monitor.models import ApiToken
from monitor.owners import rows
from monitor.pages.hub import LOGINS
from monitor.runtime.rows.wakeups import wake
from scheduler.jobs.rows import changes as job_changes

logger = logging.getLogger(__name__)
# Values of Sec-Fetch-Site: the user typed or pasted the address, or came from a page of gpucoord.
TRUSTED = ("none", "same-origin")


@login_not_required
@require_GET
@never_cache
def open_link(request: HttpRequest, secret: str) -> HttpResponse:
    """Log in, which uses the link up, or ask whether to."""
    if _is_no_visit(request):
        return HttpResponse(status=204)
    now = timezone.now()
    owner = rows.owner_of_link(secret, now)
    if owner is not None and (_comes_from_elsewhere(request) or _is_another(request, owner)):
        context = {"owner": owner, "secret": secret}
        return render(request, "registration/link_confirm.html", context)
    return _use(request, secret, now)


@login_not_required
@require_POST
@never_cache
def confirm(request: HttpRequest, secret: str) -> HttpResponse:
    """Log in after the question. The form has a CSRF token, so no other site can send it."""
    return _use(request, secret, timezone.now())


def _use(request: HttpRequest, secret: str, now: datetime) -> HttpResponse:
    user = rows.use_link(secret, now)
    if user is None:
        logger.warning("A login link was refused", extra={"kind": "LOGIN_LINK_REFUSED"})
        return render(request, "registration/link_refused.html", status=403)
    login(request, user, "django.contrib.auth.backends.ModelBackend")
    name = user.get_username()
    text = f"{name} logged in by a login link"
    audit.note("LOGIN_LINK_USED", text, by=name, now=now, subject=f"user {name}")
    return redirect(settings.LOGIN_REDIRECT_URL)


def _is_no_visit(request: HttpRequest) -> bool:
    """The browser only guesses that the link will be opened, or loads it as a part of a page."""
    headers = request.headers
    is_guess = headers.get("Sec-Purpose", "").startswith("prefetch")
    return is_guess or headers.get("Sec-Fetch-Mode", "navigate") != "navigate"


def _comes_from_elsewhere(request: HttpRequest) -> bool:
    """By what the browser says. Over plain HTTP it says at most which page had the link."""
    headers = request.headers
    if (site := headers.get("Sec-Fetch-Site")) is not None:
        return site not in TRUSTED
    try:
        return urlsplit(headers.get("Referer", "")).netloc not in ("", request.get_host())
    except ValueError:
        return True


def _is_another(request: HttpRequest, owner: User) -> bool:
    return request.user.is_authenticated and request.user.pk != owner.pk


# The page of an invitation: sets the user's password and logs in.


@method_decorator(login_not_required, name="dispatch")
class OpenInvitation(PasswordResetConfirmView):
    """The token is valid until the password is set, the user logs in, or it expires."""

    template_name = "registration/invitation.html"
    success_url = reverse_lazy("start")
    post_reset_login = True
    post_reset_login_backend = "django.contrib.auth.backends.ModelBackend"

    def get_user(self, uidb64: str) -> User | None:
        user: User | None = super().get_user(uidb64)
        return user if user is not None and user.is_active else None

    def form_valid(self, form: SetPasswordForm[User]) -> HttpResponse:
        response = super().form_valid(form)
        name, now = form.user.get_username(), timezone.now()
        text = f"{name} set a password by an invitation"
        audit.note("PASSWORD_SET", text, by=name, now=now, subject=f"user {name}")
        logger.info("%s", text, extra={"kind": "PASSWORD_CHANGED", "user": name})
        return response

    def get_context_data(self, **more: Any) -> dict[str, Any]:
        context = super().get_context_data(**more)
        return context | {"invited": self.user}


# Consequences of changes to users: open sockets check their login at once when it has ended.


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
