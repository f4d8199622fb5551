"""The app of the reports: registers its thresholds and tasks."""

from __future__ import annotations

from django.apps import AppConfig


class ReportsConfig(AppConfig):
    name = "reports"
    verbose_name = "Reports"

    def ready(self) -> None:
        from monitor.incidents.alerts import steps
        from monitor.runtime.rows import extensions, periodic_tasks
        from monitor.thresholds import rows as thresholds
        from reports.catalogue import POLICIES, PROFILES, TOPICS

        thresholds.register_all(POLICIES, PROFILES, TOPICS)
        periodic_tasks.register("reports.tasks:queue_due")
        if extensions.is_on("schedules"):
            from reports.schedule import step as delivery

            steps.register_attachments(delivery.ATTACHED_REPORT, delivery.enclosure)
