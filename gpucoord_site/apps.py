"""The configuration of the site: its admin and the settings of the process."""

from __future__ import annotations

import gc

from django.apps import AppConfig
from django.contrib.admin import apps


class AdminConfig(apps.AdminConfig):
    default = False
    default_site = "gpucoord_site.admin.Site"

    def ready(self) -> None:
        super().ready()
        from gpucoord_site.accounts import admin as account_admin

        account_admin.install()


class SiteConfig(AppConfig):
    default = True
    name = "gpucoord_site"
    verbose_name = "Gpucoord"

    def ready(self) -> None:
        from gpucoord_site.accounts import sessions
        from gpucoord_site.config import databases
        from gpucoord_site.http import security_log
        from gpucoord_site.service import user_changes
        from monitor.runtime.rows import database

        security_log.listen()
        sessions.listen()
        user_changes.listen()
        database.listen()
        databases.listen()
        # This app is the last: all is loaded that the command line loaded without collections.
        gc.freeze()
        gc.enable()
