"""One migration makes the tables of an app; databases of the builds before it continue."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from gpucoord_site.cli import check as checks
from gpucoord_site.service import startup_checks
from gpucoord_site.service.startup_checks import UnableToStart

APPS = {"gpucoord_site", "monitor", "reports", "scheduler"}
pytestmark = pytest.mark.django_db


def replaced() -> list[tuple[str, str]]:
    """The migrations of the builds before the first release."""
    disk = MigrationLoader(connection).disk_migrations
    return [key for (app, _), made in disk.items() if app in APPS for key in made.replaces]


def later() -> list[tuple[str, str]]:
    """The migrations since then; the test's database has their columns already."""
    disk = MigrationLoader(connection).disk_migrations
    return [key for key in disk if key[0] in APPS and key[1] != "0001_initial"]


def record(applied: list[tuple[str, str]]) -> None:
    """Make the database say that it has these migrations of the apps and no others."""
    recorder = MigrationRecorder(connection)
    recorder.migration_qs.filter(app__in=APPS).delete()
    for app, name in applied:
        recorder.record_applied(app, name)


def pending() -> set[tuple[str, str]]:
    loader = MigrationLoader(connection)
    return set(loader.disk_migrations) - set(loader.applied_migrations)


def test_each_app_starts_with_one_migration() -> None:
    first = {key for key in MigrationLoader(connection).disk_migrations if key[1] == "0001_initial"}

    assert {app for app, _ in first} >= APPS


def test_a_database_with_all_replaced_migrations_is_taken_over_as_it_is() -> None:
    record(replaced() + later())

    startup_checks.prepare_database()

    assert pending() == set()
    assert startup_checks.unknown_migrations(MigrationLoader(connection)) == []


def test_a_database_with_a_part_of_them_is_refused_as_too_old() -> None:
    record(replaced()[:-1] + later())

    with pytest.raises(UnableToStart, match="too old for this gpucoord"):
        startup_checks.prepare_database()
    assert [finding.text for finding in checks._migrations()] == ["too old for this gpucoord"]


def test_only_first_migrations_replace_others() -> None:
    """A database that has a part of what one replaces is refused, and builds were used between."""
    disk = MigrationLoader(connection).disk_migrations

    folded = [key for key, made in disk.items() if key[0] in APPS and made.replaces]
    assert {name for _, name in folded} == {"0001_initial"}


def test_migrate_alone_takes_such_a_database_too() -> None:
    record(replaced() + later())

    call_command("migrate", verbosity=0)

    assert pending() == set()
