"""The location of the settings file, and its content."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any


class ConfigError(Exception):
    """An invalid setting; the message is written for the operator."""


def default_data_folder() -> Path:
    """The folder for all data: /var/lib for root, otherwise the XDG data folder."""
    if os.geteuid() == 0:
        return Path("/var/lib/gpucoord")
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "gpucoord"


def config_file() -> Path | None:
    """The TOML file in use: GPUCOORD_CONFIG, the current folder's, the data folder's, /etc's.

    A named file must exist. One in the current folder must belong to this account or root;
    otherwise another account that can write there could control this one.
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
    """Keys and values of the file; an error is reported with its line."""
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text in UTF-8.") from None
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}.") from None
