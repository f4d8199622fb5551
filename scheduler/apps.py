from __future__ import annotations

from django.apps import AppConfig


class SchedulerConfig(AppConfig):
    name = "scheduler"
    verbose_name = "Scheduler"

    def ready(self) -> None:
        from monitor import policies
        from scheduler.policy.quotas import QuotaPolicy
        from scheduler.regions import register_regions

        register_regions()
        policies.register("quotas", QuotaPolicy)
