"""`gpucoord migrate`: makes all tables of an empty database at once; others as Django does.

Migrations build the tables in steps, and each step makes model classes anew, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from django.apps import apps
from django.core.management.commands import migrate
from django.core.management.sql import emit_post_migrate_signal
from django.db import DEFAULT_DB_ALIAS, connection, router
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import RunPython
from django.db.migrations.recorder import MigrationRecorder
from django.db.migrations.state import StateApps
from django.db.models import AutoField, BigAutoField, Model

# Migrations of other apps change only rows that exist.
OWN_APPS = frozenset({"gpucoord_site", "monitor", "scheduler", "reports"})
# With one of these, Django looks at or applies a part of the migrations.
OF_A_PART = ("app_label", "fake", "fake_initial", "plan", "check_unapplied", "prune")


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> str | None:
        is_whole = options["database"] == DEFAULT_DB_ALIAS and not any(map(options.get, OF_A_PART))
        if not is_whole or connection.introspection.table_names():
            return super().handle(*args, **options)
        make_all()
        return None


def make_all() -> None:
    """Make all tables with their first rows in an empty database.

    All is one transaction, so that a process that is killed leaves an empty database.
    """
    loader, recorder = MigrationLoader(connection), MigrationRecorder(connection)
    with connection.schema_editor() as editor:
        tables: list[type[Model]] = [*_models(), cast("type[Model]", recorder.Migration)]
        for model in tables:
            editor.create_model(model)
        for link, short in _links(tables):
            editor.alter_field(link, short, _long_number(link))
        recorder.migration_qs.bulk_create(
            recorder.Migration(app=app, name=name) for app, name in sorted(_recorded(loader))
        )
        for fill in _first_rows(loader):
            fill.code(cast(StateApps, apps), editor)
        emit_post_migrate_signal(0, False, DEFAULT_DB_ALIAS, apps=apps, plan=[])


def _recorded(loader: MigrationLoader) -> set[tuple[str, str]]:
    """All migrations; Django takes one as applied only with those that it replaces."""
    replaced = (set(migration.replaces) for migration in loader.disk_migrations.values())
    return set(loader.disk_migrations).union(*replaced)


def _models() -> Iterator[type[Model]]:
    """Tables between two models are made with the first of them."""
    for config in apps.get_app_configs():
        for model in router.get_migratable_models(config, DEFAULT_DB_ALIAS):
            options = model._meta
            if options.managed and not options.proxy and not options.swapped:
                yield model


def _links(tables: list[type[Model]]) -> Iterator[tuple[type[Model], AutoField[int, int]]]:
    """The tables between two models of Django: by its migrations, their rows have long numbers."""
    for model in tables:
        for field in model._meta.local_many_to_many:
            link = field.remote_field.through
            if link is not None and type(link._meta.pk) is AutoField:
                yield link, link._meta.pk


def _long_number(link: type[Model]) -> BigAutoField[int, int]:
    field: BigAutoField[int, int] = BigAutoField(primary_key=True)
    field.set_attributes_from_name("id")
    field.model = link
    return field


def _first_rows(loader: MigrationLoader) -> Iterator[RunPython]:
    """The steps that fill tables, of the migrations that a new database would get."""
    for app, name in sorted(loader.graph.nodes):
        if app in OWN_APPS:
            operations = loader.graph.nodes[app, name].operations
            yield from (step for step in operations if isinstance(step, RunPython))
