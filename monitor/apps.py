from __future__ import annotations

from django.apps import AppConfig


class MonitorConfig(AppConfig):
    name = "monitor"
    verbose_name = "Monitor"

    def ready(self) -> None:
        from monitor.event_region import REGION
        from monitor.regions import register

        register(REGION)
