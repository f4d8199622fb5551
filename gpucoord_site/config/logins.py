"""Django's settings of the login services: LDAP (django-auth-ldap), OIDC (mozilla-django-oidc)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from gpucoord_site.config.settings import Config, ConfigError

TIMEOUT_S = 5


def login_settings(config: Config) -> dict[str, Any]:
    """Settings for the services that are configured. Raises ConfigError without their extra."""
    return (ldap_settings(config) if config.ldap_url else {}) | (
        oidc_settings(config) if config.oidc_issuer else {}
    )


def backends(config: Config) -> list[str]:
    """Their backends. A password is tried here first, then at the directory."""
    chosen = ["gpucoord_site.accounts.ldap_login.LdapLogin"] if config.ldap_url else []
    return (
        [*chosen, "gpucoord_site.accounts.oidc_login.OidcLogin"] if config.oidc_issuer else chosen
    )


def ldap_settings(config: Config) -> dict[str, Any]:
    _need("django_auth_ldap", "ldap_url", "ldap")
    import ldap
    from django_auth_ldap.config import LDAPSearch

    options = {
        ldap.OPT_NETWORK_TIMEOUT: TIMEOUT_S,
        ldap.OPT_TIMEOUT: TIMEOUT_S,
        # A referral would send the password to another server.
        ldap.OPT_REFERRALS: 0,
    }
    if config.ldap_ca_file is not None:
        options |= {
            ldap.OPT_X_TLS_CACERTFILE: str(config.ldap_ca_file),
            ldap.OPT_X_TLS_REQUIRE_CERT: ldap.OPT_X_TLS_DEMAND,
            ldap.OPT_X_TLS_NEWCTX: 0,
        }
    url = str(config.ldap_url)
    return {
        "AUTH_LDAP_SERVER_URI": url,
        "AUTH_LDAP_START_TLS": config.ldap_start_tls and url.startswith("ldap://"),
        "AUTH_LDAP_CONNECTION_OPTIONS": options,
        "AUTH_LDAP_BIND_DN": config.ldap_bind_dn,
        "AUTH_LDAP_BIND_PASSWORD": config.ldap_bind_password or "",
        "AUTH_LDAP_USER_SEARCH": LDAPSearch(
            config.ldap_users, ldap.SCOPE_SUBTREE, config.ldap_filter
        ),
        "AUTH_LDAP_USER_ATTR_MAP": {"email": "mail", "first_name": "givenName", "last_name": "sn"},
    }


def oidc_settings(config: Config) -> dict[str, Any]:
    _need("mozilla_django_oidc", "oidc_issuer", "oidc")
    return {
        "OIDC_RP_CLIENT_ID": config.oidc_client_id,
        "OIDC_RP_CLIENT_SECRET": config.oidc_client_secret,
        "OIDC_OP_AUTHORIZATION_ENDPOINT": config.oidc_authorization_url,
        "OIDC_OP_TOKEN_ENDPOINT": config.oidc_token_url,
        "OIDC_OP_USER_ENDPOINT": config.oidc_user_url,
        "OIDC_OP_JWKS_ENDPOINT": config.oidc_keys_url,
        "OIDC_RP_SIGN_ALGO": "RS256",
        "OIDC_RP_SCOPES": "openid profile email",
        "OIDC_USE_PKCE": True,
        "OIDC_TIMEOUT": TIMEOUT_S,
        "LOGIN_REDIRECT_URL_FAILURE": "/login/?failed=oidc",
    }


def _need(module: str, setting: str, extra: str) -> None:
    if find_spec(module) is None:
        raise ConfigError(f"{setting} needs the extra {extra}: pip install 'gpucoord[{extra}]'.")
