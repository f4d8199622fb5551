"""Values of Django's settings: database, login services, secret key, address of static files."""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dj_database_url
import django
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from gpucoord_site import __version__
from gpucoord_site.config.settings import Config, ConfigError
from gpucoord_site.service.startup_checks import network_problem

if TYPE_CHECKING:
    from psycopg.abc import AdaptContext, Buffer


SQLITE_OPTIONS = {
    "timeout": 10,
    # A transaction that reads and then writes would fail at once, whatever the timeout.
    "transaction_mode": "IMMEDIATE",
    "init_command": (
        "PRAGMA journal_mode=WAL;PRAGMA synchronous=NORMAL;PRAGMA mmap_size=134217728;"
        "PRAGMA journal_size_limit=67108864;PRAGMA cache_size=-8000;"
    ),
}
# Connections live as long as their process: each reopening costs a poll of the task queue.
CONN_MAX_AGE_S = 600


def database(config: Config) -> dict[str, Any]:
    """The one database. Raises ConfigError for SQLite on a network file system."""
    if config.database_url is None:
        return _sqlite(config.data / "gpucoord.sqlite3")
    parsed = dict(dj_database_url.parse(config.database_url, conn_max_age=CONN_MAX_AGE_S))
    if parsed["ENGINE"] == "django.db.backends.sqlite3":
        return _sqlite(Path(str(parsed["NAME"])).absolute())
    if not parsed.get("PASSWORD") and (password := os.environ.get("PGPASSWORD")):
        # libpq can't find it there itself: see secret_variables.py.
        parsed["PASSWORD"] = password
    # A connection that the server dropped is opened again instead of failing a whole request.
    return {**parsed, "CONN_HEALTH_CHECKS": True}


def _sqlite(path: Path) -> dict[str, Any]:
    if problem := network_problem(path):
        raise ConfigError(problem)
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "CONN_MAX_AGE": CONN_MAX_AGE_S,
        "OPTIONS": SQLITE_OPTIONS,
    }


def listen() -> None:
    """Check the times of every PostgreSQL connection of this process."""
    connection_created.connect(_connected, dispatch_uid="postgres_times")


def _connected(connection: BaseDatabaseWrapper, **_: Any) -> None:
    if connection.vendor == "postgresql":
        check_times(connection.connection)


def check_times(connection: AdaptContext) -> None:
    """Make this connection raise OverflowError for times outside the calendar in UTC."""
    from psycopg.types.datetime import DatetimeDumper

    class CheckedDumper(DatetimeDumper):
        def dump(self, obj: datetime) -> Buffer | None:
            if obj.year in (MINYEAR, MAXYEAR):
                obj.astimezone(UTC)
            return super().dump(obj)

    connection.adapters.register_dumper(datetime, CheckedDumper)


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


def secret_key(data: Path) -> str:
    """The key in DATA/secret_key, created with mode 0600 at the first call.

    Two processes that start together agree: the file is linked into place, and the second one reads
    it.
    """
    try:
        return _read_or_make(data)
    except OSError as error:
        raise ConfigError(
            f"The data folder {data} can't be used ({error.strerror}: {error.filename})."
            " Set GPUCOORD_DATA to a folder that this account may write to."
        ) from None


def _read_or_make(data: Path) -> str:
    path = data / "secret_key"
    if not path.exists():
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make(path)
    key = path.read_text()
    if not key.strip():
        raise ConfigError(
            f"The secret key {path} is empty. Restore it from a backup. Without one, delete the"
            " file: a new key is made, all users log in again, and the addresses of alert"
            " channels must be entered again."
        )
    return key


def _make(path: Path) -> None:
    """Write the key, and give it its name once its content is on the disk."""
    draft = path.with_name(f".secret_key.{os.getpid()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(secrets.token_urlsafe(50))
        file.flush()
        os.fsync(file.fileno())
    try:
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


DIGEST_LENGTH = 12


def static_url(folder: Path) -> str:
    """The address below which the files of `folder` and of Django's admin are served.

    A browser may therefore keep each file for good, and shows no old one after an upgrade.
    """
    # Files of the admin and of htmx change with the versions of their packages.
    versions = f"{__version__} {django.__version__} {version('django-htmx')}"
    digest = hashlib.sha256(versions.encode())
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, content = file.relative_to(folder).as_posix(), file.read_bytes()
        digest.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return f"/static/{digest.hexdigest()[:DIGEST_LENGTH]}/"
