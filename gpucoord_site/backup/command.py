"""Backup and restore: database, secret key and settings.

Logs, results and checkpoints of jobs are not part of a backup.
"""

from __future__ import annotations

import ast
import os
import shutil
import sqlite3
import tempfile
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpucoord_site import __version__
from gpucoord_site.backup import archive, postgres
from gpucoord_site.backup.archive import DATABASES, SECRET_KEY, SETTINGS, BackupError, Manifest
from gpucoord_site.config.databases import database
from gpucoord_site.config.file import config_file
from gpucoord_site.config.settings import Config
from gpucoord_site.service.startup_checks import lock_data_folder
from monitor.facts.formats import shortest_size

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
        postgres.dump(options, copy)
        return postgres.migrations(options)
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
    with suppress(OSError):
        # A sentence of lock_data_folder says why not.
        config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = lock_data_folder(config.data)
    try:
        _check_unused(config, options, replace=replace)
        with tempfile.TemporaryDirectory(prefix=".restore-", dir=config.data) as folder:
            staging = Path(folder)
            manifest = archive.extract(source.absolute(), staging)
            _check_fits(manifest, _kind(options))
            return _put(config, options, staging, manifest)
    except OSError as error:
        raise BackupError(f"{config.data} can't be used: {error.strerror or error}.") from None
    finally:
        os.close(lock)


def _check_unused(config: Config, options: dict[str, Any], *, replace: bool) -> None:
    """Raise BackupError if other hosts use the database, or if there is data to lose."""
    there = [path for path in (config.data / "secret_key",) if path.exists()]
    if _kind(options) == "postgresql":
        postgres.refuse_busy(options)
        has_rows = bool(postgres.tables(options))
    else:
        has_rows = Path(options["NAME"]).exists()
    if (there or has_rows) and not replace:
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
        postgres.restore(options, staging / DATABASES[kind])
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
