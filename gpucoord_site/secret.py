"""The secret key: made once, kept in the data folder, readable by its owner alone."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from gpucoord_site.config import ConfigError


def secret_key(data: Path) -> str:
    """The key in DATA/secret_key, made with mode 0600 at the first call.

    Two processes that start together agree: the file is linked into place, and the loser reads.
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
        draft = data / f".secret_key.{os.getpid()}"
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_urlsafe(50))
        try:
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink()
    return path.read_text()
