"""Logins with the password of an LDAP directory (extra `ldap`)."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.utils import timezone
from django_auth_ldap.backend import LDAPBackend

from gpucoord_site.accounts import people
from gpucoord_site.accounts.people import NotAccepted
from monitor.owners import rows


class LdapLogin(LDAPBackend):  # type: ignore[misc]
    """Finds the user of a directory entry by its DN. The uid number links it to an OS account."""

    def authenticate_ldap_user(self, ldap_user: Any, password: str) -> User | None:
        user: User | None = super().authenticate_ldap_user(ldap_user, password)
        return user if user is not None and user.is_active else None

    def get_or_build_user(self, username: str, ldap_user: Any) -> tuple[User, bool]:
        """The user of the entry, and False: it is saved already."""
        provider, subject = str(settings.CONFIG.ldap_url), ldap_user.dn.lower()
        if (user := people.external_user(provider, subject)) is not None:
            return user, False
        account = people.account_with_uid(username, _uid_number(ldap_user))
        try:
            return self._first_login(provider, subject, username, account), False
        except NotAccepted as reason:
            people.log_refusal(provider, reason)
            raise ldap_user.AuthenticationFailed(str(reason)) from None

    def _first_login(self, provider: str, subject: str, username: str, account: str | None) -> User:
        """A user who logged in by this OS account before is the same person, unless privileged."""
        owner = None if account is None else rows.user_of(account)
        if owner is None:
            now = timezone.now()
            return people.create_external(provider, subject, username, now, account=account)
        if owner.is_staff or owner.is_superuser:
            raise NotAccepted(f"{owner} is staff; such users log in with a password")
        people.link_external(owner, provider, subject)
        return owner


def _uid_number(ldap_user: Any) -> int | None:
    values = ldap_user.attrs.get("uidNumber") or []
    return int(values[0]) if len(values) == 1 and str(values[0]).isdecimal() else None
