"""Logins by an OpenID Connect provider (extra `oidc`). A second factor is the provider's task."""

from __future__ import annotations

from typing import Any

import requests
from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import SuspiciousOperation
from django.utils import timezone
from jwt import PyJWTError
from mozilla_django_oidc.auth import OIDCAuthenticationBackend

from gpucoord_site.accounts import people
from gpucoord_site.accounts.people import NotAccepted

# Clocks of two machines may differ by this much.
LEEWAY_S = 60


class OidcLogin(OIDCAuthenticationBackend):  # type: ignore[misc]
    """Finds the user by issuer and subject, because names and addresses can change hands."""

    def authenticate(self, request: Any, **credentials: Any) -> User | None:
        try:
            user: User | None = super().authenticate(request, **credentials)
        except (requests.RequestException, SuspiciousOperation, PyJWTError, ValueError) as reason:
            people.log_refusal(str(settings.CONFIG.oidc_issuer), reason)
            return None
        return user if user is not None and user.is_active else None

    def verify_token(self, token: str, **options: Any) -> dict[str, Any]:
        """Also checks issuer, audience and time, which the library leaves out."""
        payload: dict[str, Any] = super().verify_token(token, **options)
        audience = payload.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        expires = payload.get("exp")
        problem = (
            "another issuer"
            if payload.get("iss") != settings.CONFIG.oidc_issuer
            else "another audience"
            if self.OIDC_RP_CLIENT_ID not in audiences
            else "no time of expiry"
            if not isinstance(expires, int | float)
            else "expired"
            if expires < timezone.now().timestamp() - LEEWAY_S
            else None
        )
        if problem:
            raise SuspiciousOperation(f"The token has {problem}.")
        return payload

    def get_or_create_user(
        self, access_token: str, id_token: str, payload: dict[str, Any]
    ) -> User | None:
        claims: dict[str, Any] = self.get_userinfo(access_token, id_token, payload)
        subject = str(payload.get("sub") or "")
        if not subject or claims.get("sub") != payload.get("sub"):
            raise SuspiciousOperation("Token and userinfo are about different subjects.")
        issuer = str(settings.CONFIG.oidc_issuer)
        if (user := people.external_user(issuer, subject)) is not None:
            return user
        try:
            return _create(issuer, subject, claims)
        except NotAccepted as reason:
            people.log_refusal(issuer, reason)
            return None


def _create(issuer: str, subject: str, claims: dict[str, Any]) -> User:
    config = settings.CONFIG
    name = str(claims.get(config.oidc_username_claim) or "")
    account = claims.get(config.oidc_account_claim) if config.oidc_account_claim else None
    user = people.create_external(
        issuer, subject, name, timezone.now(), account=str(account) if account else None
    )
    user.email = str(claims.get("email") or "")[:254]
    user.save(update_fields=["email"])
    return user
