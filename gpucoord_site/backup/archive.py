"""The file of a backup: a compressed tar with a manifest first. Reading one trusts none of it.

manifest.json     version, kind of database, migrations; size and SHA-256 of each other file
secret_key        as in the data folder
gpucoord.toml     the settings file, if there is one
database.sqlite3  or database.pgdump (custom format of pg_dump)
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import secrets
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psycopg
from msgspec import Struct, to_builtins
from psycopg import sql

from monitor.facts import input_rules
from monitor.runtime.probes import disk_space

FORMAT = 1
MANIFEST = "manifest.json"
SECRET_KEY, SETTINGS = "secret_key", "gpucoord.toml"
DATABASES = {"sqlite": "database.sqlite3", "postgresql": "database.pgdump"}
CHUNK = 1024**2
# Bytes. A header of the tar format is never larger, and these files are small.
LARGEST_READ = 4 * CHUNK
LARGEST_SMALL = CHUNK
# Space that must stay free on the disk that a database is restored to.
SPARE_BYTES = 64 * CHUNK


class BackupError(Exception):
    """A backup can't be made or restored; the text is a sentence for the operator."""


class StoredFile(Struct, frozen=True, kw_only=True):
    bytes: int
    sha256: str


class Manifest(Struct, frozen=True, kw_only=True):
    """migrations: those that the database has applied, as `app.name`."""

    gpucoord: str
    made_at: str
    node: str
    database: str
    migrations: tuple[str, ...]
    files: Mapping[str, StoredFile]


def stored(path: Path) -> StoredFile:
    """Size and checksum of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return StoredFile(bytes=path.stat().st_size, sha256=digest)


def write(target: Path, manifest: Manifest, files: Mapping[str, Path]) -> None:
    """Write the archive with mode 0600. `target` appears as a whole or not at all."""
    # A new file of our own: another account may write to the folder, and would read the secret key.
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    body = json.dumps({"format": FORMAT, **to_builtins(manifest)}, indent=1).encode()
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as out:
            with tarfile.open(fileobj=out, mode="w:gz", compresslevel=6) as tar:
                tar.addfile(_member(MANIFEST, len(body)), io.BytesIO(body))
                for name, path in files.items():
                    with path.open("rb") as file:
                        tar.addfile(_member(name, manifest.files[name].bytes), file)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    return member


class _Bounded(io.RawIOBase):
    """A stream whose single reads are bounded: a header of a hostile archive can't fill memory."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream = stream

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= LARGEST_READ:
            raise BackupError("a header in it is too large.")
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()


def extract(archive: Path, folder: Path) -> Manifest:
    """Write the files of the archive into `folder` (mode 0600) and return its manifest.

    Raises BackupError for anything that `write` does not write: other names, links, folders, a
    file twice, and sizes and checksums that differ from the manifest.
    """
    try:
        with (
            gzip.open(archive) as stream,
            tarfile.open(fileobj=_Bounded(stream), mode="r:") as tar,
        ):
            return _extract(tar, folder)
    except BackupError as error:
        raise BackupError(f"{archive} is no backup of gpucoord: {error}") from None
    except (tarfile.TarError, zlib.error, EOFError, ValueError, KeyError, TypeError) as error:
        raise BackupError(f"{archive} is no backup of gpucoord: {error}.") from None
    except OSError as error:
        raise BackupError(f"{archive} can't be read: {error.strerror or error}.") from None


def _extract(tar: tarfile.TarFile, folder: Path) -> Manifest:
    first = _checked(tar.next())
    if first.name != MANIFEST:
        raise BackupError("its first file is not manifest.json.")
    if first.size > LARGEST_SMALL:
        raise BackupError("its manifest is too large.")
    manifest = _parsed(input_rules.parse_json(_content(tar, first).read(LARGEST_SMALL)))
    missing = set(manifest.files)
    while (member := tar.next()) is not None:
        name = _checked(member).name
        if name not in missing:
            raise BackupError(f"it holds {name[:100]!r}, which its manifest does not name once.")
        missing.remove(name)
        _write(_content(tar, member), member.size, manifest.files[name], folder / name)
    if missing:
        raise BackupError(f"{', '.join(sorted(missing))} is missing.")
    return manifest


def _checked(member: tarfile.TarInfo | None) -> tarfile.TarInfo:
    if member is None:
        raise BackupError("it is empty.")
    if not member.isreg() or member.name not in {
        MANIFEST, SECRET_KEY, SETTINGS, *DATABASES.values(),
    }:  # fmt: skip
        raise BackupError(f"it holds {member.name[:100]!r}, which no backup has.")
    return member


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(member)
    if content is None:
        raise BackupError(f"{member.name} is not a file.")
    return content


def _parsed(raw: Any) -> Manifest:
    if raw.pop("format") != FORMAT:
        raise BackupError("its format is of another version of gpucoord.")
    files = {str(name): StoredFile(**facts) for name, facts in raw.pop("files").items()}
    manifest = Manifest(**raw | {"migrations": tuple(map(str, raw["migrations"]))}, files=files)
    if manifest.database not in DATABASES:
        raise BackupError("its database is of an unknown kind.")
    if not {SECRET_KEY, DATABASES[manifest.database]} <= set(files):
        raise BackupError("its manifest names no secret key or no database.")
    return manifest


def _write(content: IO[bytes], size: int, expected: StoredFile, path: Path) -> None:
    limit = LARGEST_SMALL
    if path.name in DATABASES.values():
        limit = disk_space.read(path.parent).available_bytes - SPARE_BYTES
    if size != expected.bytes or size > limit:
        raise BackupError(f"{path.name} has {size} bytes, which is not as expected or too large.")
    digest = hashlib.sha256()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as out:
        while chunk := content.read(CHUNK):
            digest.update(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != expected.sha256:
        raise BackupError(f"the checksum of {path.name} is wrong.")


# Dumps of a PostgreSQL database with its own programs, pg_dump and pg_restore.


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
