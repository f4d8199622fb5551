"""The secret key: created once in the data folder, readable by its owner only."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from gpucoord_site.config.settings import ConfigError


def secret_key(data: Path) -> str:
    """The key in DATA/secret_key, created with mode 0600 at the first call.

    Two processes that start together agree: the file is linked into place, and the second one reads
    it.
    """
    try:
        return _read_or_make(data)
    except OSError as error:
        raise ConfigError(
            f"The data folder {data} can't be used ({error.strerror}: {error.filename})."
            " Set GPUCOORD_DATA to a folder that this account may write to."
        ) from None


def _read_or_make(data: Path) -> str:
    path = data / "secret_key"
    if not path.exists():
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make(path)
    key = path.read_text()
    if not key.strip():
        raise ConfigError(
            f"The secret key {path} is empty. Restore it from a backup. Without one, delete the"
            " file: a new key is made, all users log in again, and the addresses of alert"
            " channels must be entered again."
        )
    return key


def _make(path: Path) -> None:
    """Write the key, and give it its name once its content is on the disk."""
    draft = path.with_name(f".secret_key.{os.getpid()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(secrets.token_urlsafe(50))
        file.flush()
        os.fsync(file.fileno())
    try:
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
