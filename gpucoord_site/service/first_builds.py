"""Databases of the first builds: their migrations were folded into `0001_release_0_1`.

Django's `replaces` can't do this: later migrations are folded too, and folds can't be nested.
"""

from __future__ import annotations

from collections.abc import Container

from django.db import connection, transaction
from django.db.migrations.recorder import MigrationRecorder

RELEASE = "0001_release_0_1"
# The migrations that a database of the first builds has applied, one after the other.
FIRST_BUILDS = {
    "monitor": (
        "0001_initial",
        "0002_policies_and_audit",
        "0003_incidents",
        "0004_gpu_closures_and_cooling",
        "0005_event_indexes",
        "0006_gpus_with_their_owner",
        "0007_claims_by_their_end",
        "0008_alerts",
        "0009_days_of_patterns",
        "0010_holders_of_locks",
        "0011_event_severity",
        "0012_looks_at_the_cpus",
        "0013_names_of_gpu_rows",
    ),
    "scheduler": (
        "0001_initial",
        "0002_what_jobs_may_ask",
        "0003_yields_and_holds",
        "0004_quotas_and_shares",
        "0005_time_windows",
        "0006_throttling",
        "0007_sharing_jobs",
        "0008_means",
        "0009_withdrawn_requests",
        "0010_files_of_ended_jobs",
        "0011_plan_turns",
        "0012_names_of_gpu_rows",
        "0013_limits_of_jobs",
        "0014_keep_quotas",
    ),
}


def migrations() -> set[tuple[str, str]]:
    return {(app, name) for app, names in FIRST_BUILDS.items() for name in names}


def outdated(applied: Container[tuple[str, str]]) -> list[str]:
    """Apps with tables of a build before the last of the first ones; they can't be migrated."""
    shares = {
        app: [(app, name) in applied for name in names] for app, names in FIRST_BUILDS.items()
    }
    return [app for app, has in shares.items() if any(has) and not all(has)]


def adopt() -> list[str]:
    """Record the folded migration in a database of the last of the first builds.

    Return the apps whose tables are older than that; nothing is recorded then.
    """
    recorder = MigrationRecorder(connection)
    applied = set(recorder.applied_migrations())
    if apps := outdated(applied):
        return apps
    with transaction.atomic():
        for app, names in FIRST_BUILDS.items():
            if (app, names[-1]) in applied:
                if (app, RELEASE) not in applied:
                    recorder.record_applied(app, RELEASE)
                recorder.migration_qs.filter(app=app, name__in=names).delete()
    return []


def too_old(apps: list[str]) -> str:
    """The refusal of a database that this gpucoord can't migrate, with what to do."""
    return (
        f"The database is too old for this gpucoord (tables of {', '.join(apps)})."
        " Start with an empty data folder, or first upgrade the database with the"
        " version that comes after the one that made it."
    )
