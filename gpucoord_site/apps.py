"""The configuration of the site: its admin and the settings of the process."""

from __future__ import annotations

import gc
from functools import cache
from typing import Any

from django.apps import AppConfig
from django.contrib import admin
from django.contrib.admin import apps
from django.contrib.admin.checks import check_admin_app, check_dependencies
from django.core import checks


@cache
def load_admin() -> None:
    """Register its pages, once. Only a process that serves or checks them needs it."""
    from gpucoord_site.accounts import admin as account_admin
    from monitor.runtime.rows.extensions import parts

    admin.autodiscover()
    # The pages of extensions register themselves.
    parts("scheduler.admin.model_services:admin", "scheduler.admin.idle_work:admin")

    account_admin.install()


class AdminConfig(apps.SimpleAdminConfig):
    """Its pages are registered with the addresses: no process loads them before its work."""

    default = False
    default_site = "gpucoord_site.admin.Site"

    def ready(self) -> None:
        checks.register(check_dependencies, checks.Tags.admin)
        checks.register(_check_pages, checks.Tags.admin)


def _check_pages(*args: Any, **options: Any) -> list[checks.CheckMessage]:
    load_admin()
    return check_admin_app(*args, **options)


class SiteConfig(AppConfig):
    default = True
    name = "gpucoord_site"
    verbose_name = "Gpucoord"

    def ready(self) -> None:
        from gpucoord_site.accounts import sessions
        from gpucoord_site.config import django_values
        from gpucoord_site.http import clients
        from monitor.runtime.rows import database

        clients.listen()
        sessions.listen()
        sessions.listen_for_logouts()
        sessions.listen_to_users()
        database.listen()
        django_values.listen()
        # This app is the last: all is loaded that the command line loaded without collections.
        gc.freeze()
        gc.enable()
