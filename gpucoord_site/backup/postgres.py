"""Dumps of a PostgreSQL database with its own programs, pg_dump and pg_restore."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from gpucoord_site.backup.archive import BackupError

DEBIAN = Path("/usr/lib/postgresql")
CONNECT_S = 10
LONGEST_TEXT = 500
# The content of the database before a restore, kept until the restore is complete.
REPLACED = "gpucoord_replaced"

Options = Mapping[str, Any]


def dump(options: Options, target: Path) -> None:
    """Write the database as it is at one instant, in the custom format of pg_dump."""
    _run(["pg_dump", "--format=custom", "--no-owner", "--no-privileges", "--file", str(target)],
         options)  # fmt: skip


def migrations(options: Options) -> list[str]:
    """The migrations that it has applied, as `app.name`."""
    with connect(options) as connection:
        try:
            rows = connection.execute("SELECT app, name FROM django_migrations ORDER BY id")
        except psycopg.errors.UndefinedTable:
            raise BackupError(f"{place(options)} has no tables of gpucoord.") from None
        return [f"{app}.{name}" for app, name in rows]


def tables(options: Options) -> list[str]:
    """The tables of the schema in which gpucoord has its own."""
    query = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() ORDER BY 1"
    with connect(options) as connection:
        return [name for (name,) in connection.execute(query)]


def refuse_busy(options: Options) -> None:
    """Raise BackupError while a host's gpucoord holds a lease in the database."""
    if hosts := _busy_hosts(options):
        raise BackupError(f"gpucoord runs on this database ({', '.join(hosts)}). Stop it first.")


def _busy_hosts(options: Options) -> list[str]:
    query = (
        "SELECT DISTINCT host FROM monitor_lease"
        " WHERE pid IS NOT NULL AND expires_at > now() ORDER BY 1"
    )
    with connect(options) as connection:
        try:
            return [host for (host,) in connection.execute(query)]
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            return []


def restore(options: Options, file: Path) -> None:
    """Replace the tables by those of the dump. If that fails, the old ones are as before."""
    _undo_interrupted(options)
    with connect(options) as connection, connection.transaction():
        schema = sql.Identifier(_schema(connection))
        connection.execute(
            sql.SQL("ALTER SCHEMA {} RENAME TO {}").format(schema, sql.Identifier(REPLACED))
        )
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
    try:
        _run(
            ["pg_restore", "--no-owner", "--no-privileges", "--single-transaction",
             "--exit-on-error", str(file)],
            options,
        )  # fmt: skip
    except BaseException:
        _put_back(options)
        raise
    with connect(options) as connection:
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(REPLACED)))


def _undo_interrupted(options: Options) -> None:
    """A killed restore leaves the old tables aside. They are put back if no others exist."""
    with connect(options) as connection:
        aside = connection.execute(
            "SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", [REPLACED]
        ).fetchone()
    if not aside:
        return
    if tables(options):
        raise BackupError(
            f"{place(options)} has a schema {REPLACED} of an interrupted restore, and other tables"
            f" too. Drop the ones that you do not need: DROP SCHEMA {REPLACED} CASCADE drops the"
            " tables from before that restore."
        )
    _put_back(options)


def _put_back(options: Options) -> None:
    with connect(options) as connection, connection.transaction():
        schema = sql.Identifier(_schema(connection))
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(schema))
        connection.execute(
            sql.SQL("ALTER SCHEMA {} RENAME TO {}").format(sql.Identifier(REPLACED), schema)
        )


def _schema(connection: psycopg.Connection[Any]) -> str:
    row = connection.execute("SELECT current_schema()").fetchone()
    if row is None or row[0] is None:
        raise BackupError("The account of DATABASE_URL has no schema in this database.")
    return str(row[0])


@contextmanager
def connect(options: Options) -> Iterator[psycopg.Connection[Any]]:
    """A connection without transaction. An error becomes a sentence without the password."""
    secret = str(options.get("PASSWORD") or "") or None
    try:
        with psycopg.connect(
            conninfo(options),
            password=secret,
            connect_timeout=CONNECT_S,
            autocommit=True,
            # Otherwise texts of a database with the encoding SQL_ASCII are bytes.
            client_encoding="utf8",
        ) as connection:
            yield connection
    except psycopg.Error as error:
        first = str(error).strip().splitlines()[0]
        raise BackupError(f"{place(options)} can't be used: {first}") from None


def refuse_encoding(options: Options) -> None:
    """Raise BackupError unless the database can hold each text that SQLite can."""
    with connect(options) as connection:
        row = connection.execute("SHOW server_encoding").fetchone()
    name = str(row[0]) if row else ""
    if name != "UTF8":
        raise BackupError(
            f"{place(options)} has the encoding {name}, which cannot hold every text."
            " Create another one with: createdb --encoding UTF8 --template template0 NAME"
        )


def conninfo(options: Options) -> str:
    """The address for programs of PostgreSQL, without the password."""
    names = {"NAME": "dbname", "USER": "user", "HOST": "host", "PORT": "port"}
    parts = {ours: str(options[key]) for key, ours in names.items() if options.get(key)}
    more = options.get("OPTIONS") or {}
    parts |= {key: str(value) for key, value in more.items() if isinstance(value, (str, int))}
    return psycopg.conninfo.make_conninfo("", **parts)


def place(options: Options) -> str:
    return f"The database {options['NAME']} on {options.get('HOST') or 'the local socket'}"


def _run(argv: list[str], options: Options) -> None:
    environ = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
    environ |= {name: os.environ[name] for name in ("HOME", "PGPASSFILE") if name in os.environ}
    if secret := options.get("PASSWORD"):
        environ["PGPASSWORD"] = str(secret)
    done = subprocess.run(
        [_program(argv[0]), *argv[1:], "--dbname", conninfo(options)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environ,
        check=False,
    )
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip()[-LONGEST_TEXT:]
        raise BackupError(f"{argv[0]} failed: {text or 'no message'}")


def _program(name: str) -> str:
    """The newest of the installed ones: pg_dump refuses a server that is newer than itself."""
    newest = sorted(DEBIAN.glob(f"*/bin/{name}"), key=lambda path: _number(path.parts[-3]))
    program = str(newest[-1]) if newest else shutil.which(name)
    if program is None:
        raise BackupError(f"{name} is not installed. On Debian: apt install postgresql-client.")
    return program


def _number(text: str) -> float:
    return float(text) if text.isdigit() else 0.0
