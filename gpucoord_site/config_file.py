"""Where the settings file is, and what stands in it."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any


class ConfigError(Exception):
    """Something that a person set is wrong; the message is written for them."""


def default_data_folder() -> Path:
    """Where gpucoord keeps everything: /var/lib for root, the XDG data folder for people."""
    if os.geteuid() == 0:
        return Path("/var/lib/gpucoord")
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "gpucoord"


def config_file() -> Path | None:
    """The TOML file in use: GPUCOORD_CONFIG, the current folder's, the data folder's, /etc's.

    One that is named must be there. One in the current folder must be ours or root's: else
    whoever can write to that folder would decide what we run.
    """
    named = os.environ.get("GPUCOORD_CONFIG")
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise ConfigError(f"GPUCOORD_CONFIG names {path}, and there is no such file.")
        return path
    data = os.environ.get("GPUCOORD_DATA")
    folder = Path(data).expanduser() if data else default_data_folder()
    here = Path("gpucoord.toml")
    if here.is_file() and here.stat().st_uid in {0, os.geteuid()}:
        return here.absolute()
    others = (folder / "gpucoord.toml", Path("/etc/gpucoord.toml"))
    return next((path for path in others if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except PermissionError:
        return False


def read_toml(path: Path) -> dict[str, Any]:
    """The file's keys and values; a mistake in it is named with its line."""
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text in UTF-8.") from None
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}.") from None
