"""Django's DATABASES: SQLite in the data folder, or the database of DATABASE_URL.

Refuses times that PostgreSQL stores but Python cannot read back: 9999-12-31 23:59 in Los Angeles
is in the year 10000 in UTC. PostgreSQL accepts it, and then every query that returns the row
fails. SQLite refuses it with OverflowError, and so does this module.
"""

from __future__ import annotations

import os
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dj_database_url
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from gpucoord_site.config.settings import Config, ConfigError
from gpucoord_site.service.filesystems import network_problem

if TYPE_CHECKING:
    from psycopg.abc import AdaptContext, Buffer

SQLITE_OPTIONS = {
    "timeout": 10,
    # A transaction that reads and then writes would fail at once, whatever the timeout.
    "transaction_mode": "IMMEDIATE",
    "init_command": (
        "PRAGMA journal_mode=WAL;PRAGMA synchronous=NORMAL;PRAGMA mmap_size=134217728;"
        "PRAGMA journal_size_limit=67108864;PRAGMA cache_size=-8000;"
    ),
}
# Connections live as long as their process: each reopening costs a poll of the task queue.
CONN_MAX_AGE_S = 600


def database(config: Config) -> dict[str, Any]:
    """The one database. Raises ConfigError for SQLite on a network file system."""
    if config.database_url is None:
        return _sqlite(config.data / "gpucoord.sqlite3")
    parsed = dict(dj_database_url.parse(config.database_url, conn_max_age=CONN_MAX_AGE_S))
    if parsed["ENGINE"] == "django.db.backends.sqlite3":
        return _sqlite(Path(str(parsed["NAME"])).absolute())
    if not parsed.get("PASSWORD") and (password := os.environ.get("PGPASSWORD")):
        # libpq can't find it there itself: see secret_variables.py.
        parsed["PASSWORD"] = password
    # A connection that the server dropped is opened again instead of failing a whole request.
    return {**parsed, "CONN_HEALTH_CHECKS": True}


def _sqlite(path: Path) -> dict[str, Any]:
    if problem := network_problem(path):
        raise ConfigError(problem)
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "CONN_MAX_AGE": CONN_MAX_AGE_S,
        "OPTIONS": SQLITE_OPTIONS,
    }


def listen() -> None:
    """Check the times of every PostgreSQL connection of this process."""
    connection_created.connect(_connected, dispatch_uid="postgres_times")


def _connected(connection: BaseDatabaseWrapper, **_: Any) -> None:
    if connection.vendor == "postgresql":
        check_times(connection.connection)


def check_times(connection: AdaptContext) -> None:
    """Make this connection raise OverflowError for times outside the calendar in UTC."""
    from psycopg.types.datetime import DatetimeDumper

    class CheckedDumper(DatetimeDumper):
        def dump(self, obj: datetime) -> Buffer | None:
            if obj.year in (MINYEAR, MAXYEAR):
                obj.astimezone(UTC)
            return super().dump(obj)

    connection.adapters.register_dumper(datetime, CheckedDumper)
