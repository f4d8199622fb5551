"""Inserts without model instances, and a check that the SQLite file is there.

SQLite keeps
writing to a deleted file and creates an empty one for each new connection, so the result of a
query does not show that the file was deleted or replaced.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from django.db import DEFAULT_DB_ALIAS, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.models import Field, Model

POSTGRES_DISK_FULL = "53100"
P = ParamSpec("P")
M = TypeVar("M", bound=Model)


def keep_commits_synced(*, on: bool) -> None:
    """Whether this connection's commits survive a power cut (with PostgreSQL they always do)."""
    connection = connections[DEFAULT_DB_ALIAS]
    if connection.vendor == "sqlite" and not connection.in_atomic_block:
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA synchronous={'FULL' if on else 'NORMAL'}")


class FilledTables:
    """Which of these tables have rows, in one cheap query."""

    def __init__(self, *models: type[Model]) -> None:
        self._models = models

    def read(self) -> tuple[bool, ...]:
        connection = connections[DEFAULT_DB_ALIAS]
        tables = (connection.ops.quote_name(model._meta.db_table) for model in self._models)
        columns = ", ".join(f"EXISTS (SELECT 1 FROM {table})" for table in tables)  # noqa: S608
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {columns}")
            return tuple(map(bool, cursor.fetchone()))


def insert(model: type[Model], rows: Iterable[Mapping[str, object]]) -> int:
    """Insert many rows of numbers and texts, by column name; returns their number.

    Rows that exist already stay. bulk_create() takes several times as long, because it makes
    model instances and converts values. Here dates and JSON are not converted.
    """
    sql, fields = _insert_sql(model, connections[DEFAULT_DB_ALIAS].vendor)
    defaults = {field.attname: field.get_default() for field in fields}
    values = [tuple({**defaults, **row}.values()) for row in rows]
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.executemany(sql, values)
    return len(values)


@cache
def _insert_sql(model: type[Model], _vendor: str) -> tuple[str, list[Field[Any, Any]]]:
    """The statement, and the fields in the order of its values."""
    fields = [field for field in model._meta.concrete_fields if not field.primary_key]
    quote_name = connections[DEFAULT_DB_ALIAS].ops.quote_name
    columns = ", ".join(quote_name(str(field.column)) for field in fields)
    marks = ", ".join(["%s"] * len(fields))
    table = quote_name(model._meta.db_table)
    sql = f"INSERT INTO {table} ({columns}) VALUES ({marks})"  # noqa: S608 - names of columns
    return f"{sql} ON CONFLICT DO NOTHING", fields


SENTENCE = (
    "The database file {name} was deleted or replaced while gpucoord runs. "
    "Stop gpucoord, put the file back from a backup, and start gpucoord again."
)


class DatabaseFileGone(OperationalError):
    """The message is the sentence of `file_problem`."""


class OpenedFile:
    """The identity of the file when it was first opened; forked children inherit it."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self._identity: tuple[int, int] | None = None

    def remember(self, path: Path) -> None:
        """Only the first call with an existing file has an effect."""
        if self.path is None and (identity := _identity(path)) is not None:
            self.path, self._identity = path, identity

    def problem(self) -> str | None:
        """A sentence if the file at the path is missing or another one; None: no known problem."""
        if self.path is None or _identity(self.path) == self._identity:
            return None
        return SENTENCE.format(name=self.path.name)


opened = OpenedFile()


def is_full(error: BaseException | None) -> bool:
    """Whether the disk of the database was full."""
    while error is not None:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return True
        if getattr(error, "sqlstate", None) == POSTGRES_DISK_FULL:
            return True
        error = error.__cause__
    return False


def file_problem() -> str | None:
    return opened.problem()


def check_file() -> None:
    """Raises DatabaseFileGone."""
    if text := file_problem():
        raise DatabaseFileGone(text)


def listen() -> None:
    """Remember the file of the first connection."""
    connection_created.connect(_connected, dispatch_uid="database_file")


def _connected(connection: BaseDatabaseWrapper, **_: Any) -> None:
    if connection.vendor == "sqlite" and opened.path is None:
        path = Path(str(connection.settings_dict["NAME"]))
        if path.is_absolute():
            opened.remember(path)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino
