"""`gpucoord check`: the database, whether it is reachable, and the age of its tables."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from gpucoord_site.cli.check.report import Finding, fail, ok, warn
from gpucoord_site.config.databases import database as database_settings
from gpucoord_site.config.settings import Config, ConfigError


def database(config: Config) -> Iterator[Finding]:
    try:
        database_options = database_settings(config)
    except ConfigError as error:
        yield fail("database", str(error))
        return
    if database_options["ENGINE"].endswith("sqlite3"):
        path = Path(database_options["NAME"])
        yield ok("database", f"SQLite {sqlite3.sqlite_version}, {path}")
        if not path.exists():
            return
    else:
        server = _postgres(database_options)
        yield server
        # Asking Django makes the secret key: not before the first start has made the folder.
        if server.level == "fail" or not (config.data / "secret_key").exists():
            return
    yield from _migrations()


def _postgres(options: dict[str, object]) -> Finding:
    import psycopg

    where = f"PostgreSQL {options['NAME']} on {options.get('HOST') or 'the local socket'}"
    try:
        with psycopg.connect(
            dbname=str(options["NAME"]),
            user=str(options.get("USER") or "") or None,
            password=str(options.get("PASSWORD") or "") or None,
            host=str(options.get("HOST") or "") or None,
            port=str(options.get("PORT") or "") or None,
            connect_timeout=5,
        ) as connection:
            number = connection.info.server_version
            encoding = connection.info.parameter_status("server_encoding")
    except psycopg.OperationalError as error:
        reason = next((line for line in str(error).splitlines() if "failed" in line), str(error))
        return fail("database", f"{where}: {reason}", "check DATABASE_URL and the server")
    where = f"{where}, version {number // 10000}.{number % 10000}"
    if encoding != "UTF8":
        return warn(
            "database",
            f"{where}; with its encoding {encoding}, text with other letters than English fails",
            "create it with: createdb --encoding UTF8 --template template0 NAME",
        )
    return ok("database", where)


def _migrations() -> Iterator[Finding]:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpucoord_site.settings")
    import django

    django.setup()
    from django.db import DatabaseError, connection
    from django.db.migrations.loader import MigrationLoader

    from gpucoord_site.service.startup_checks import is_too_old, unknown_migrations

    try:
        if is_too_old():
            todo = "upgrade them first with an earlier gpucoord, or use an empty data folder"
            yield fail("tables", "too old for this gpucoord", todo)
            return
        loader = MigrationLoader(connection)
    except DatabaseError as error:
        yield fail("tables", f"can't be read: {error}")
        return
    pending = len(set(loader.disk_migrations) - set(loader.applied_migrations))
    if newer := unknown_migrations(loader):
        todo = "update gpucoord, or use another data folder"
        yield fail("tables", f"made by a newer gpucoord ({', '.join(newer)})", todo)
    elif pending:
        yield warn("tables", f"{pending} changes to apply", "gpucoord up does it at its start")
    else:
        yield ok("tables", "up to date")
