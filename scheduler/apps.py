from __future__ import annotations

from django.apps import AppConfig


class SchedulerConfig(AppConfig):
    name = "scheduler"
    verbose_name = "Scheduler"

    def ready(self) -> None:
        from monitor import policies, pruning
        from monitor.pages import status_page
        from scheduler import means, share_rows
        from scheduler.pages.regions import register_regions
        from scheduler.policy.catalogue import POLICIES, PROFILES, TOPICS

        policies.register_all(POLICIES, PROFILES, TOPICS)
        pruning.register(share_rows.too_old)
        register_regions()
        status_page.register("scheduler/_means.html", means.listed)
