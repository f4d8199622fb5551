"""Queries whose SQL is compiled once, and a check that the SQLite file is still in place.

Django takes several times as long to compile a query as SQLite takes to answer it. SQLite keeps
writing to a deleted file and creates an empty one for each new connection, so the result of a
query does not show that the file was deleted or replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.models import Model, QuerySet

P = ParamSpec("P")
M = TypeVar("M", bound=Model)


def prepared(query: Callable[P, QuerySet[M]]) -> Callable[P, list[M]]:
    """Returns the rows of `query`. Each distinct set of arguments is cached, so keep them few."""
    compiled: dict[object, tuple[type[M], str, tuple[object, ...]]] = {}

    @wraps(query)
    def run(*args: P.args, **kwargs: P.kwargs) -> list[M]:
        key = (args, tuple(kwargs.items()))
        if key not in compiled:
            rows = query(*args, **kwargs)
            compiled[key] = (rows.model, *rows.query.sql_with_params())
        model, sql, params = compiled[key]
        return list(model._default_manager.raw(sql, params))

    return run


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
