"""The app of the scheduler: registers its thresholds, pruning and pages."""

from __future__ import annotations

from django.apps import AppConfig


class SchedulerConfig(AppConfig):
    name = "scheduler"
    verbose_name = "Scheduler"

    def ready(self) -> None:
        from monitor.runtime import pages as status
        from monitor.runtime.rows.extensions import parts
        from monitor.thresholds import rows as thresholds
        from monitor.usage.rows import rollups
        from scheduler.catalogue import POLICIES, PROFILES, TOPICS
        from scheduler.disk import steps as cleaning_runs
        from scheduler.execution.steps import hosts as host_capabilities
        from scheduler.jobs import steps as job_files
        from scheduler.jobs.pages.table import register_regions
        from scheduler.jobs.pages.views import calibration_lines
        from scheduler.limits.quotas import rows as quota_rows
        from scheduler.submission.intake import steps as intake_checks

        thresholds.register_all(POLICIES, PROFILES, TOPICS)
        rollups.register_outdated(quota_rows.too_old)
        rollups.register_outdated(cleaning_runs.too_old)
        rollups.register_outdated(job_files.expired_jobs)
        for old_rows in parts(
            "scheduler.language_models.model_services.rows:too_old",
            "scheduler.language_models.prompts.rows:too_old",
            "scheduler.submission.batches.rows:expired",
        ):
            rollups.register_outdated(old_rows)
        register_regions()
        status.register("scheduler/_accounts.html", intake_checks.current_account_rule)
        status.register("scheduler/_means.html", host_capabilities.listed)
        for statuses in parts("scheduler.dispatch.steps.engine_answers:engine_statuses"):
            status.register("scheduler/_engines.html", statuses)
        status.register("scheduler/_calibration.html", calibration_lines)
