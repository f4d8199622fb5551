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
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from msgspec import Struct, to_builtins

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
