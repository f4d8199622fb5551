"""The token file of a user, which only its owner can read."""

from __future__ import annotations

import os
from pathlib import Path


class UnsafeToken(Exception):
    """Others could read the file."""


def place() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "gpucoord" / "token"


def save(text: str) -> Path:
    """Write the file as a whole, readable by its owner alone."""
    path = place()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f"token.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        os.fchmod(descriptor, 0o600)
        file.write(text + "\n")
    part.replace(path)
    return path


def load() -> str | None:
    """The saved token; None when there is none."""
    path = place()
    try:
        with path.open(encoding="ascii") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise UnsafeToken(f"Others can read {path}; run: chmod 600 {path}")
            return file.read().strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UnsafeToken(f"{path} can't be read: {error}") from None
