from __future__ import annotations

import gc

from django.apps import AppConfig
from django.contrib.admin import apps


class AdminConfig(apps.AdminConfig):
    default = False
    default_site = "gpucoord_site.admin.Site"


class SiteConfig(AppConfig):
    default = True
    name = "gpucoord_site"
    verbose_name = "Gpucoord"

    def ready(self) -> None:
        from gpucoord_site import leavers, security_log

        security_log.listen()
        leavers.listen()
        # This app is the last: all is loaded that the command line loaded without collections.
        gc.freeze()
        gc.enable()
