"""Rows: the sessions of the website, by user."""

from __future__ import annotations

from django.conf import settings
from django.contrib.sessions.base_session import AbstractBaseSession
from django.db import models


class UserSession(AbstractBaseSession):
    """A session with what its user needs to recognise it. Not in the admin: the key is a secret."""

    # The session outlives no account, but a login must never fail over this column.
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.CASCADE,
        null=True,
        related_name="user_sessions",
        db_constraint=False,
    )
    signed_in_at = models.DateTimeField(null=True)
    seen_at = models.DateTimeField(null=True)
    address = models.CharField(max_length=45)
    browser = models.CharField(max_length=200)


class ExternalLogin(models.Model):
    """A person of a login service, and the user that they are here.

    provider: the issuer or the URL of the directory. subject: what names the person there for good.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    provider = models.CharField(max_length=200)
    subject = models.CharField(max_length=255)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["provider", "subject"], name="external_login_once")
        ]

    def __str__(self) -> str:
        return f"{self.subject} of {self.provider}"


class WelcomeHidden(models.Model):
    """A user who has hidden the pages after a first login."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, models.CASCADE, primary_key=True, related_name="+"
    )
    hidden_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"hidden by {self.user}"
