"""Databases of earlier builds: those at the last migrations continue, older ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from gpucoord_site.service import first_builds, startup_checks
from gpucoord_site.service.startup_checks import UnableToStart

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.django_db


def of_first_builds(except_for: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    return [
        (app, name)
        for app, names in first_builds.FIRST_BUILDS.items()
        for name in names
        if not name.startswith(except_for or "none")
    ]


def record(applied: list[tuple[str, str]]) -> None:
    """Make the database say that it has these migrations of the apps and no others."""
    recorder = MigrationRecorder(connection)
    recorder.migration_qs.filter(app__in=("monitor", "scheduler")).delete()
    for app, name in applied:
        recorder.record_applied(app, name)


def test_a_database_of_the_first_builds_continues_with_the_later_migrations() -> None:
    record(of_first_builds())
    assert startup_checks.unknown_migrations(MigrationLoader(connection)) == []

    assert first_builds.adopt() == []

    executor = MigrationExecutor(connection)
    targets = [key for key in executor.loader.graph.leaf_nodes() if key[0] == "scheduler"]
    plan = [m.name for m, _ in executor.migration_plan(targets) if m.app_label == "scheduler"]
    assert plan[0] == "0002_since_release_0_1"
    assert not any("squashed" in name for name in plan)
    assert startup_checks.unknown_migrations(executor.loader) == []


def test_a_database_before_them_is_refused_as_too_old() -> None:
    record(of_first_builds(except_for=("0013", "0014")))

    with pytest.raises(UnableToStart, match="too old for this gpucoord"):
        startup_checks.prepare_database()
    with pytest.raises(CommandError, match="too old for this gpucoord"):
        call_command("migrate", verbosity=0)


def test_a_new_database_needs_no_adoption() -> None:
    record([])

    assert first_builds.adopt() == []
    assert not MigrationRecorder(connection).migration_qs.filter(app="scheduler").exists()


def test_a_fold_replaces_each_numbered_migration_of_its_app() -> None:
    disk = MigrationLoader(connection).disk_migrations
    folds = {app: m for (app, name), m in disk.items() if name.startswith("0001_squashed_")}

    assert set(folds) == {"gpucoord_site", "monitor", "reports", "scheduler"}
    for app, fold in folds.items():
        last = max(name for _, name in fold.replaces)
        files = (ROOT / app / "migrations").glob("0*.py")
        earlier = {p.stem for p in files if p.stem <= last and "squashed" not in p.stem}
        assert {name for _, name in fold.replaces} == earlier
