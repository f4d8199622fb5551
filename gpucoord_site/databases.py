"""Django's DATABASES: SQLite in the data folder, or what DATABASE_URL says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dj_database_url

from gpucoord_site.config import Config, ConfigError
from gpucoord_site.filesystems import network_problem

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
