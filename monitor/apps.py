"""The app of the monitor: registers its thresholds and page regions."""

from __future__ import annotations

from django.apps import AppConfig


class MonitorConfig(AppConfig):
    name = "monitor"
    verbose_name = "Monitor"

    def ready(self) -> None:
        from monitor.catalogue import POLICIES, PROFILES, TOPICS
        from monitor.incidents.pages import ALERTS, REGION
        from monitor.pages.frames import register
        from monitor.thresholds import rows as thresholds

        thresholds.register_all(POLICIES, PROFILES, TOPICS)
        register(ALERTS)
        register(REGION)
