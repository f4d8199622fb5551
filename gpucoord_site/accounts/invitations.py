"""The page of an invitation: sets the user's password and logs in."""

from __future__ import annotations

import logging
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import SetPasswordForm
from django.contrib.auth.models import User
from django.contrib.auth.views import PasswordResetConfirmView
from django.http import HttpResponse
from django.urls import reverse_lazy
from django.utils import timezone
from django.utils.decorators import method_decorator

from monitor.journal.rows import audit

logger = logging.getLogger(__name__)


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
