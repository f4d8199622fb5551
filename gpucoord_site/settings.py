"""Django's settings, derived from `config.Config`; nothing is decided here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from csp.constants import NONE, SELF

from gpucoord_site.cli import local_login
from gpucoord_site.config.django_values import (
    backends,
    database,
    login_settings,
    secret_key,
    static_url,
)
from gpucoord_site.config.extensions import rooms_off
from gpucoord_site.config.file import config_file
from gpucoord_site.config.settings import load_config
from gpucoord_site.config.values import own_names
from gpucoord_site.service.logs import log_settings

CONFIG = load_config()
ROOMS_OFF = rooms_off(CONFIG.extensions)
DATA = CONFIG.data
LOCK_FOLDER = CONFIG.locks
# Files outside the data folder that hold secrets: closed to jobs that share our account.
SECRET_FILES = [
    path for path in (config_file(), local_login.token_path().parent) if path is not None
]
PACKAGE = Path(__file__).resolve().parent
# A checkout keeps templates/ and static/ at its top, a wheel inside this package.
ASSETS = PACKAGE if (PACKAGE / "templates").is_dir() else PACKAGE.parent

SECRET_KEY = secret_key(DATA)
DEBUG = CONFIG.debug
ALLOWED_HOSTS = [*CONFIG.allowed_hosts, *own_names(CONFIG.host)]

INSTALLED_APPS = [
    "gpucoord_site.apps.AdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "channels",
    "django_htmx",
    "django_q",
    "axes",
    "monitor",
    "scheduler",
    "reports",
    "gpucoord_site",
]
MIDDLEWARE = [
    "gpucoord_site.http.clients.client_address",
    "gpucoord_site.http.middleware.Compress",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "gpucoord_site.http.middleware.PrivatePages",
    "csp.middleware.CSPMiddleware",
    "gpucoord_site.http.api_errors.ApiErrors",
    "gpucoord_site.http.errors.DatabaseFileGuard",
    "gpucoord_site.http.handler.AddressGuard",
    "gpucoord_site.http.middleware.browser_zone",
    "gpucoord_site.accounts.sessions.Sessions",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "gpucoord_site.http.handler.FormGuard",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "axes.middleware.AxesMiddleware",
]
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
    *backends(CONFIG),
]
globals().update(login_settings(CONFIG))
ROOT_URLCONF = "gpucoord_site.urls"
ASGI_APPLICATION = "gpucoord_site.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ASSETS / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "gpucoord_site.http.middleware.site",
            ]
        },
    }
]

DATABASES = {"default": database(CONFIG)}

Q_CLUSTER = {
    "name": "gpucoord",
    # Each host has a queue of its own: a loop runs on the host that it is for.
    "cluster_name": CONFIG.node,
    "orm": "default",
    "broker_class": "gpucoord_site.service.task_queue.TaskQueue",
    # Three loops, one that takes over from another, and two for short tasks.
    "workers": 6,
    # Longer than the longest slice (loops.TASK_TIMEOUT_S); `retry` must be longer still.
    "timeout": 120,
    "retry": 150,
    "queue_limit": 1,
    "poll": 0.3,
    "guard_cycle": 1,
    "catch_up": False,
    # KiB; a worker that has grown beyond is replaced after its slice.
    "max_rss": 300_000,
    "save_limit": 100,
    "label": "Tasks",
}
# The long tasks of this host: reports and capacity planning, one at a time.
REPORT_CLUSTER: dict[str, Any] = {
    "cluster_name": f"{CONFIG.node[:80]} reports",
    "workers": 1,
    "timeout": 900,
    "retry": 1000,
    "queue_limit": 1,
    "poll": 1,
    "max_rss": 600_000,
    "scheduler": False,
}
CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}

LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "start"
LOGOUT_REDIRECT_URL = "login"
AUTH_PASSWORD_VALIDATORS = [
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 12},
    },
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = 0.25
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_HANDLER = "gpucoord_site.http.clients.LoginLimits"
AXES_CLIENT_IP_CALLABLE = "gpucoord_site.http.clients.counted_address"
# Of all user names together: an address that tries many names.
LOGIN_FAILURES_PER_ADDRESS = 50
AXES_LOCKOUT_CALLABLE = "gpucoord_site.http.clients.locked"
AXES_RESET_ON_SUCCESS = True
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False

STATIC_URL = static_url(ASSETS / "static")
STATICFILES_DIRS = [ASSETS / "static"]
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG
if not DEBUG:
    # A browser keeps every file: the address changes when a file does.
    WHITENOISE_IMMUTABLE_FILE_TEST = "."

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
    }
}
# Cookies don't know ports: other services of this host must not overwrite ours.
SESSION_ENGINE = "gpucoord_site.accounts.sessions"
# Each use of a session starts this time again.
SESSION_COOKIE_AGE = round(CONFIG.session_idle_hours * 3600)
SESSION_COOKIE_NAME = "gpucoord_session"
CSRF_FAILURE_VIEW = "gpucoord_site.http.errors.csrf_failure"
CSRF_COOKIE_NAME = "gpucoord_csrf"
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = CONFIG.https
SECURE_SSL_REDIRECT = CONFIG.https
# Monitoring of this host asks it directly, without the proxy.
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^metrics$"]
SECURE_HSTS_SECONDS = 31536000 if CONFIG.https else 0
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if CONFIG.https else None
X_FRAME_OPTIONS = "DENY"
# HSTS for all subdomains and browsers' preload lists is for the owner of the domain to decide.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]

USE_TZ = True
TIME_ZONE = CONFIG.time_zone
LANGUAGE_CODE = "en-gb"
FORMAT_MODULE_PATH = ["gpucoord_site.formats"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LOGGING = log_settings(CONFIG.log)
