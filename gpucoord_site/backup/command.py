"""Backup and restore of database, secret key and settings; move to another kind of database.

Logs, results and checkpoints of jobs are not part of a backup.
"""

from __future__ import annotations

import ast
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec.structs import replace
from psycopg import sql

from gpucoord_site import __version__
from gpucoord_site.backup import archive
from gpucoord_site.backup.archive import DATABASES, SECRET_KEY, SETTINGS, BackupError, Manifest
from gpucoord_site.config import values
from gpucoord_site.config.django_values import database
from gpucoord_site.config.file import config_file
from gpucoord_site.config.settings import Config
from gpucoord_site.service.startup_checks import lock_data_folder, unknown_migrations
from monitor.facts.formats import shortest_size

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import Model

APPS = ("monitor", "scheduler", "reports", "gpucoord_site")
PACKAGES = Path(__file__).resolve().parents[2]
LONGEST_NAME = 240


def backup(config: Config, target: Path, *, replace: bool = False) -> str:
    """Write the backup; gpucoord may run meanwhile. Returns what was done, in a sentence."""
    target = target.absolute()
    _check_target(target, replace=replace)
    options = database(config)
    kind = _kind(options)
    with tempfile.TemporaryDirectory(prefix=".gpucoord-backup-", dir=target.parent) as folder:
        copy = Path(folder) / DATABASES[kind]
        applied = _dump(options, copy)
        files = {DATABASES[kind]: copy, SECRET_KEY: config.data / "secret_key"}
        if (settings := config_file()) is not None:
            files[SETTINGS] = settings
        manifest = Manifest(
            gpucoord=__version__,
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            node=config.node,
            database=kind,
            migrations=tuple(applied),
            files={name: _stored(path) for name, path in files.items()},
        )
        try:
            archive.write(target, manifest, files)
        except OSError as error:
            raise BackupError(f"{target} can't be written: {error.strerror or error}.") from None
    return f"Wrote {target} ({shortest_size(target.stat().st_size)}): {', '.join(sorted(files))}."


def _check_target(target: Path, *, replace: bool) -> None:
    if target.exists() and not replace:
        raise BackupError(f"{target} exists. Choose another name, or use --replace.")
    if len(target.name) > LONGEST_NAME or not target.parent.is_dir():
        raise BackupError(f"There is no folder {target.parent}, or the name is too long.")
    if not os.access(target.parent, os.W_OK):
        raise BackupError(f"This account may not write to {target.parent}.")


def _dump(options: dict[str, Any], copy: Path) -> list[str]:
    """Copy the database; returns its migrations."""
    if _kind(options) == "postgresql":
        archive.dump(options, copy)
        return archive.migrations(options)
    path = Path(options["NAME"])
    if not path.is_file():
        raise BackupError(f"There is no database {path}. Is GPUCOORD_DATA that of the server?")
    dump_sqlite(path, copy)
    return migrations_of(copy)


def _stored(path: Path) -> archive.StoredFile:
    try:
        return archive.stored(path)
    except OSError as error:
        raise BackupError(f"{path} can't be read: {error.strerror or error}.") from None


def _kind(options: dict[str, Any]) -> str:
    return "sqlite" if str(options["ENGINE"]).endswith("sqlite3") else "postgresql"


def restore(config: Config, source: Path, *, replace: bool = False) -> str:
    """Put a backup in place of the data; gpucoord must not run. Returns what was done."""
    options = database(config)
    try:
        with _locked(config):
            _check_unused(config, options, replace=replace)
            with tempfile.TemporaryDirectory(prefix=".restore-", dir=config.data) as folder:
                staging = Path(folder)
                manifest = archive.extract(source.absolute(), staging)
                _check_fits(manifest, _kind(options))
                return _put(config, options, staging, manifest)
    except OSError as error:
        raise BackupError(f"{config.data} can't be used: {error.strerror or error}.") from None


@contextmanager
def _locked(config: Config) -> Iterator[None]:
    """The data folder, made if it is not there; gpucoord can't start meanwhile."""
    with suppress(OSError):
        # A sentence of lock_data_folder says why not.
        config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = lock_data_folder(config.data)
    try:
        yield
    finally:
        os.close(lock)


def _check_unused(config: Config, options: dict[str, Any], *, replace: bool) -> None:
    """Raise BackupError if other hosts use the database, or if there is data to lose."""
    if _kind(options) == "postgresql":
        archive.refuse_busy(options)
        has_rows = bool(archive.tables(options))
    else:
        has_rows = Path(options["NAME"]).exists()
    if (has_rows or (config.data / "secret_key").exists()) and not replace:
        obstacle = "The database has tables" if has_rows else f"{config.data} has a secret key"
        raise BackupError(
            f"{obstacle}. Use an empty data folder and database, or --replace to replace them."
        )


def _check_fits(manifest: Manifest, kind: str) -> None:
    """Raise BackupError for a backup of a newer gpucoord, or of the other kind of database."""
    if _version(manifest.gpucoord) > _version(__version__):
        raise BackupError(
            f"The backup is of gpucoord {manifest.gpucoord}, and this is {__version__}."
            " Install that version or a later one."
        )
    if newer := sorted(set(manifest.migrations) - _own_migrations()):
        names = [name for name in newer if name.partition(".")[0] in APPS]
        if names:
            raise BackupError(
                f"The backup is of a newer gpucoord: it has {', '.join(names[:5])}."
                " Install the version that made it, or a later one."
            )
    if manifest.database != kind:
        words = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
        raise BackupError(
            f"The backup is of {words[manifest.database]}, and the settings name {words[kind]}."
            f" Restore it with settings for {words[manifest.database]} first, and then run"
            " gpucoord move-database."
        )


def _version(text: str) -> tuple[int, ...]:
    """Only the numbers count: 1.2.3rc1 is like 1.2.3. Raises BackupError."""
    parts = text.split(".")
    digits = ["".join(c for c in part.split("rc")[0] if c.isdecimal()) for part in parts]
    if not all(digits) or len(digits) > 4 or max(map(len, digits)) > 6:
        raise BackupError(f"The backup names the version {text[:40]!r}, which is none.")
    return tuple(map(int, digits))


def _own_migrations() -> set[str]:
    """The migrations of gpucoord's apps that this version can start from.

    They are read as text, since Django is not set up: its settings may come from the backup.
    """
    own = set()
    for app in APPS:
        for path in (PACKAGES / app / "migrations").glob("0*.py"):
            own.add(f"{app}.{path.stem}")
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "replaces":
                    own |= {f"{app}.{name}" for app, name in ast.literal_eval(node.value)}
    return own


def _put(config: Config, options: dict[str, Any], staging: Path, manifest: Manifest) -> str:
    """Move the extracted files into place; replaced ones are kept in a folder."""
    kind = manifest.database
    replaced = config.data / f"replaced-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    done = [f"Restored {kind} and secret_key of {manifest.made_at} from {manifest.node}."]
    if kind == "postgresql":
        archive.restore(options, staging / DATABASES[kind])
    else:
        check_sqlite(staging / DATABASES[kind])
        place = Path(options["NAME"])
        for name in (place.name, *(f"{place.name}{end}" for end in ("-wal", "-shm", "-journal"))):
            _set_aside(place.with_name(name), replaced)
        (staging / DATABASES[kind]).replace(place)
    _set_aside(config.data / SECRET_KEY, replaced)
    (staging / SECRET_KEY).replace(config.data / SECRET_KEY)
    if SETTINGS in manifest.files:
        done.append(_put_settings(config, staging / SETTINGS))
    if replaced.exists():
        done.append(f"The files that were there are in {replaced}.")
    done.append("Start gpucoord now. Jobs whose files are missing become `lost`.")
    return "\n".join(done)


def _put_settings(config: Config, file: Path) -> str:
    """A settings file in use is not replaced."""
    in_use = config_file()
    name = SETTINGS if in_use is None else f"{SETTINGS}.restored"
    file.replace(config.data / name)
    if in_use is None:
        return f"The settings are in {config.data / name}."
    return f"The settings in use stay ({in_use}); those of the backup are in {config.data / name}."


def _set_aside(path: Path, replaced: Path) -> None:
    with suppress(FileNotFoundError):
        replaced.mkdir(mode=0o700, exist_ok=True)
        shutil.move(path, replaced / path.name)
    if replaced.exists() and not any(replaced.iterdir()):
        replaced.rmdir()


def dump_sqlite(database: Path, target: Path) -> None:
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
    check_sqlite(target)


def check_sqlite(database: Path) -> None:
    """Raise BackupError if SQLite reports that the file is damaged."""
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            answer = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        answer = str(error)
    if answer != "ok":
        raise BackupError(f"{database.name} is damaged: {answer}.")


def migrations_of(database: Path) -> list[str]:
    """The migrations that it has applied, as `app.name`."""
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            rows = connection.execute("SELECT app, name FROM django_migrations ORDER BY id")
            return [f"{app}.{name}" for app, name in rows]
    except sqlite3.Error as error:
        raise BackupError(f"{database} is no database of gpucoord: {error}.") from None


# `gpucoord move-database TARGET`: copy all rows between SQLite and PostgreSQL.
#
# The tables are made and filled apart: in a schema of their own on PostgreSQL, in another file with
# SQLite. They get their place in one step when each table has as many rows as its source.

APART = "gpucoord_moving"
ALIAS = "moving"
CHUNK_ROWS = 500


def move(config: Config, target: str) -> str:
    """Copy everything to `target`; the source is not changed. Returns what was done."""
    url = f"sqlite:///{config.data / 'gpucoord.sqlite3'}" if target == "sqlite" else target
    source, place = database(config), database(_with_url(config, url))
    if _kind(source) == _kind(place):
        raise BackupError("Both databases are of the same kind. Use gpucoord backup and restore.")
    with _locked(config):
        _check_source(source)
        is_postgres = _kind(place) == "postgresql"
        mover = _ToPostgres(url, place) if is_postgres else _ToSqlite(place)
        mover.prepare()
        try:
            _migrate(mover.url)
            rows = _copy(mover.options)
            mover.finish()
        except BaseException:
            mover.discard()
            raise
    return (
        f"Copied {sum(rows.values())} rows of {len(rows)} tables; all counts are equal."
        f" {mover.todo} The old database is not changed."
    )


def _with_url(config: Config, url: str) -> Config:
    try:
        return replace(config, database_url=values.database(url))
    except ValueError as error:
        raise BackupError(f"The target can't be used: {error}.") from None


def _check_source(source: dict[str, Any]) -> None:
    if _kind(source) == "postgresql":
        archive.refuse_busy(source)
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
        if archive.tables(self._place):
            raise BackupError(f"{archive.place(self._place)} has tables already. Use an empty one.")
        archive.refuse_encoding(self._place)
        with archive.connect(self._place) as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(APART)))

    def finish(self) -> None:
        """All tables get their place in one transaction."""
        apart = sql.Identifier(APART)
        names = archive.tables(self.options)
        with archive.connect(self._place) as connection, connection.transaction():
            row = connection.execute("SELECT current_schema()").fetchone()
            schema = sql.Identifier(str(row[0] if row else "public"))
            for name in names:
                table = sql.Identifier(APART, name)
                connection.execute(sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(table, schema))
            connection.execute(sql.SQL("DROP SCHEMA {}").format(apart))

    def discard(self) -> None:
        apart = sql.Identifier(APART)
        with archive.connect(self._place) as connection:
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
        waiting = rows.iterator(chunk_size=CHUNK_ROWS)
        while chunk := list(islice(waiting, CHUNK_ROWS)):
            prepared = [
                [f.get_db_prep_save(v, target) for f, v in zip(fields, row, strict=True)]
                for row in chunk
            ]
            cursor.executemany(insert, prepared)
    expected, copied = rows.count(), model._base_manager.using(ALIAS).count()
    if expected != copied:
        raise BackupError(f"{model._meta.db_table} has {expected} rows, but {copied} were copied.")
    return copied


def _reset_sequences(target: BaseDatabaseWrapper) -> None:
    """The next ids come after the copied ones."""
    from django.core.management.color import no_style

    with target.cursor() as cursor:
        for statement in target.ops.sequence_reset_sql(no_style(), _models()):
            cursor.execute(statement)
