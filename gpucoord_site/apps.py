from __future__ import annotations

from django.apps import AppConfig


class SiteConfig(AppConfig):
    name = "gpucoord_site"
    verbose_name = "Gpucoord"

    def ready(self) -> None:
        from gpucoord_site import security_log

        security_log.listen()
