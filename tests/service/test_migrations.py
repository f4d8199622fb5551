"""Databases of earlier builds: those at the last migrations continue, older ones are refused."""

from __future__ import annotations

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from gpucoord_site.service import startup_checks
from gpucoord_site.service.startup_checks import UnableToStart

APPS = ("monitor", "scheduler")

pytestmark = pytest.mark.django_db


def replaced() -> list[tuple[str, str]]:
    disk = MigrationLoader(connection).disk_migrations
    return [key for (app, _), m in disk.items() if app in APPS for key in m.replaces]


def record(applied: list[tuple[str, str]]) -> None:
    """Make the database say that it has these migrations of the apps and no others."""
    recorder = MigrationRecorder(connection)
    recorder.migration_qs.filter(app__in=APPS).delete()
    for app, name in applied:
        recorder.record_applied(app, name)


def test_a_database_at_the_last_replaced_migrations_continues_with_the_later_ones() -> None:
    record(replaced())

    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(
        [key for key in executor.loader.graph.leaf_nodes() if key[0] in APPS]
    )

    assert startup_checks.outdated_apps(executor.loader) == []
    assert plan
    assert not any(migration.replaces for migration, _ in plan)


def test_a_database_before_them_is_refused_as_too_old() -> None:
    record([key for key in replaced() if not key[1].startswith(("0013", "0014"))])

    with pytest.raises(UnableToStart, match="too old for this gpucoord"):
        startup_checks.prepare_database()


def test_a_new_database_is_not_outdated() -> None:
    record([])

    assert startup_checks.outdated_apps(MigrationLoader(connection)) == []
