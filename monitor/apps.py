from __future__ import annotations

from django.apps import AppConfig


class MonitorConfig(AppConfig):
    name = "monitor"
    verbose_name = "Monitor"

    def ready(self) -> None:
        from monitor import policies
        from monitor.pages.event_region import REGION
        from monitor.pages.incident_region import REGION as INCIDENTS
        from monitor.pages.regions import register
        from monitor.policy.catalogue import POLICIES, PROFILES, TOPICS

        policies.register_all(POLICIES, PROFILES, TOPICS)
        register(REGION)
        register(INCIDENTS)
