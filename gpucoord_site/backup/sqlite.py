"""Copies of an SQLite database, also while gpucoord writes to it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from gpucoord_site.backup.archive import BackupError


def dump(database: Path, target: Path) -> None:
    """Copy the database as it is at one instant (SQLite's online backup), and check the copy."""
    try:
        with (
            closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as source,
            closing(sqlite3.connect(target)) as copy,
        ):
            # One step: in WAL mode it delays no writer, and it can't be overtaken by one.
            source.backup(copy, pages=-1)
            # The copy is one file.
            copy.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error as error:
        raise BackupError(f"The database {database} can't be copied: {error}.") from None
    check(target)


def check(database: Path) -> None:
    """Raise BackupError if SQLite reports that the file is damaged."""
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            answer = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        answer = str(error)
    if answer != "ok":
        raise BackupError(f"{database.name} is damaged: {answer}.")


def migrations(database: Path) -> list[str]:
    """The migrations that it has applied, as `app.name`."""
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            rows = connection.execute("SELECT app, name FROM django_migrations ORDER BY id")
            return [f"{app}.{name}" for app, name in rows]
    except sqlite3.Error as error:
        raise BackupError(f"{database} is no database of gpucoord: {error}.") from None
