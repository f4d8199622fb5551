"""Logins by a link: of `gpucoord login`, and of an invitation.

A web site could send browsers to a link of its author, whose user they would then act as. So a
browser that comes from another site, or is logged in as another user, is asked first.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import login
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import SetPasswordForm
from django.contrib.auth.models import User
from django.contrib.auth.views import PasswordResetConfirmView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse_lazy
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from monitor.journal.rows import audit
from monitor.owners.accounts import rows

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
