"""`gpucoord move-database TARGET`: copy all rows between SQLite and PostgreSQL.

The tables are made and filled apart: in a schema of their own on PostgreSQL, in another file with
SQLite. They get their place in one step when each table has as many rows as its source.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from psycopg import sql
from pydantic import ValidationError

from gpucoord_site.backup import postgres
from gpucoord_site.backup.archive import BackupError
from gpucoord_site.config.databases import database
from gpucoord_site.config.settings import Config
from gpucoord_site.service.startup_checks import lock_data_folder, unknown_migrations

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import Model

APART = "gpucoord_moving"
ALIAS = "moving"
CHUNK_ROWS = 500


def move(config: Config, target: str) -> str:
    """Copy everything to `target`; the source is not changed. Returns what was done."""
    url = f"sqlite:///{config.data / 'gpucoord.sqlite3'}" if target == "sqlite" else target
    source, place = database(config), database(_with_url(config, url))
    if source["ENGINE"] == place["ENGINE"]:
        raise BackupError("Both databases are of the same kind. Use gpucoord backup and restore.")
    with suppress(OSError):
        # A sentence of lock_data_folder says why not.
        config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = lock_data_folder(config.data)
    try:
        _check_source(source)
        mover = _ToPostgres(url, place) if "postgresql" in place["ENGINE"] else _ToSqlite(place)
        mover.prepare()
        try:
            _migrate(mover.url)
            rows = _copy(mover.options)
            mover.finish()
        except BaseException:
            mover.discard()
            raise
    finally:
        os.close(lock)
    return (
        f"Copied {sum(rows.values())} rows of {len(rows)} tables; all counts are equal."
        f" {mover.todo} The old database is not changed."
    )


def _with_url(config: Config, url: str) -> Config:
    try:
        return Config(**config.model_dump() | {"database_url": url})
    except ValidationError as error:
        reason = error.errors()[0].get("ctx", {}).get("error", "it is no address of a database")
        raise BackupError(f"The target can't be used: {reason}.") from None


def _check_source(source: dict[str, Any]) -> None:
    if "postgresql" in source["ENGINE"]:
        postgres.refuse_busy(source)
    elif not Path(source["NAME"]).is_file():
        raise BackupError(f"There is no database {source['NAME']}.")


class _ToPostgres:
    todo = "Set DATABASE_URL to the new database, and start gpucoord."

    def __init__(self, url: str, place: dict[str, Any]) -> None:
        self._place = place
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        query["options"] = f"{query.get('options', '')} -c search_path={APART}".strip()
        # %20 and not +: libpq's options are not a form.
        coded = urlencode(query).replace("+", "%20")
        self.url = urlunsplit(parts._replace(query=coded))
        more = dict(place.get("OPTIONS") or {}) | {"options": query["options"]}
        self.options = place | {"OPTIONS": more}

    def prepare(self) -> None:
        self.discard()
        if postgres.tables(self._place):
            raise BackupError(
                f"{postgres.place(self._place)} has tables already. Use an empty one."
            )
        postgres.refuse_encoding(self._place)
        with postgres.connect(self._place) as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(APART)))

    def finish(self) -> None:
        """All tables get their place in one transaction."""
        apart = sql.Identifier(APART)
        names = postgres.tables(self.options)
        with postgres.connect(self._place) as connection, connection.transaction():
            row = connection.execute("SELECT current_schema()").fetchone()
            schema = sql.Identifier(str(row[0] if row else "public"))
            for name in names:
                table = sql.Identifier(APART, name)
                connection.execute(sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(table, schema))
            connection.execute(sql.SQL("DROP SCHEMA {}").format(apart))

    def discard(self) -> None:
        apart = sql.Identifier(APART)
        with postgres.connect(self._place) as connection:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(apart))


class _ToSqlite:
    todo = "Remove DATABASE_URL from the settings, and start gpucoord."

    def __init__(self, place: dict[str, Any]) -> None:
        self._path = Path(place["NAME"])
        self._draft = self._path.with_name(f".{self._path.name}.moving")
        self.url = f"sqlite:///{self._draft}"
        self.options = place | {"NAME": self._draft}

    def prepare(self) -> None:
        self.discard()
        if self._path.exists():
            raise BackupError(f"{self._path} exists already. Move it away first.")

    def finish(self) -> None:
        from django.db import connections

        with connections[ALIAS].cursor() as cursor:
            cursor.execute("PRAGMA journal_mode=DELETE")
        connections[ALIAS].close()
        self._draft.replace(self._path)
        self.discard()

    def discard(self) -> None:
        for end in ("", "-wal", "-shm", "-journal"):
            self._draft.with_name(self._draft.name + end).unlink(missing_ok=True)


def _migrate(url: str) -> None:
    """Make the tables. In a process of its own, whose only database is the target."""
    done = subprocess.run(
        [sys.executable, "-m", "gpucoord_site", "migrate", "--verbosity=0"],
        env=os.environ | {"DATABASE_URL": url, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        text = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise BackupError(f"The tables can't be made: {text[0][:500]}")


def _copy(options: dict[str, Any]) -> dict[str, int]:
    """Copy all rows in one transaction; returns the number of rows of each table."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpucoord_site.settings")
    import django
    from django.conf import settings
    from django.db import DatabaseError, connections, transaction

    settings.DATABASES[ALIAS] = options
    django.setup()
    source, target = connections["default"], connections[ALIAS]
    try:
        _check_migrated(source)
        with transaction.atomic("default"), target.constraint_checks_disabled():
            if source.vendor == "postgresql":
                with source.cursor() as cursor:
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            with transaction.atomic(ALIAS):
                rows = {model._meta.db_table: _copy_table(model) for model in _models()}
                target.check_constraints()
                _reset_sequences(target)
    except DatabaseError as error:
        raise BackupError(f"A row can't be copied: {str(error).strip().splitlines()[0]}") from None
    finally:
        with suppress(DatabaseError):
            target.close()
    return rows


def _check_migrated(source: BaseDatabaseWrapper) -> None:
    from django.db.migrations.loader import MigrationLoader

    loader = MigrationLoader(source)
    if unknown_migrations(loader) or set(loader.disk_migrations) - set(loader.applied_migrations):
        raise BackupError(
            "The tables are of another version of gpucoord. Start this version once"
            " (gpucoord up), stop it, and then move the database."
        )


def _models() -> list[type[Model]]:
    from django.apps import apps

    models = apps.get_models(include_auto_created=True)
    return [m for m in models if m._meta.managed and not m._meta.proxy]


def _copy_table(model: type[Model]) -> int:
    """Replace what migrations put there, and compare the numbers of rows."""
    from django.db import connections

    target = connections[ALIAS]
    fields = [f for f in model._meta.concrete_fields if not f.generated]
    quote = target.ops.quote_name
    table, names = quote(model._meta.db_table), ", ".join(quote(str(f.column)) for f in fields)
    places = ", ".join(["%s"] * len(fields))
    insert = f"INSERT INTO {table} ({names}) VALUES ({places})"  # noqa: S608 - our own names
    rows = model._base_manager.using("default").values_list(*(f.attname for f in fields))
    with target.cursor() as cursor:
        cursor.execute(f"DELETE FROM {table}")  # noqa: S608
        for chunk in _chunks(rows.iterator(chunk_size=CHUNK_ROWS)):
            prepared = [
                [f.get_db_prep_save(v, target) for f, v in zip(fields, row, strict=True)]
                for row in chunk
            ]
            cursor.executemany(insert, prepared)
    expected, copied = rows.count(), model._base_manager.using(ALIAS).count()
    if expected != copied:
        raise BackupError(f"{model._meta.db_table} has {expected} rows, but {copied} were copied.")
    return copied


def _chunks(rows: Iterator[Any]) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == CHUNK_ROWS:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _reset_sequences(target: BaseDatabaseWrapper) -> None:
    """The next ids come after the copied ones."""
    from django.core.management.color import no_style

    with target.cursor() as cursor:
        for statement in target.ops.sequence_reset_sql(no_style(), _models()):
            cursor.execute(statement)
