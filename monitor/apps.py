from __future__ import annotations

from django.apps import AppConfig


class MonitorConfig(AppConfig):
    name = "monitor"
    verbose_name = "Monitor"

    def ready(self) -> None:
        from monitor import policies
        from monitor.event_region import REGION
        from monitor.incident_region import REGION as INCIDENTS
        from monitor.policy.catalogue import POLICIES, PROFILES, TOPICS
        from monitor.regions import register

        policies.register_all(POLICIES, PROFILES, TOPICS)
        register(REGION)
        register(INCIDENTS)
