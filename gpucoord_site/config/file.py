"""The location of the settings file, and its content."""

from __future__ import annotations

import ctypes
import os
import stat
import tomllib
from contextlib import suppress
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
    otherwise another account that can write there could control this one. So must one in a data
    folder that another account has made in a folder for all, such as /tmp.
    """
    named = os.environ.get("GPUCOORD_CONFIG")
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise ConfigError(f"GPUCOORD_CONFIG names {path}, and there is no such file.")
        return path
    data = os.environ.get("GPUCOORD_DATA")
    folder = Path(data).expanduser() if data else default_data_folder()
    here, in_data = Path("gpucoord.toml"), folder / "gpucoord.toml"
    if here.is_file() and _is_own(here):
        return here.absolute()
    if _is_file(in_data):
        if not _is_own(in_data) and _may_be_planted(folder.absolute()):
            raise ConfigError(
                f"{in_data} belongs to another account, which could control this one."
                " Set GPUCOORD_DATA to a folder that only this account may write to."
            )
        return in_data
    system = Path("/etc/gpucoord.toml")
    return system if _is_file(system) else None


def _may_be_planted(folder: Path) -> bool:
    """Whether another account has it, or one above it, in a folder that all can write to."""
    return any(
        not _is_own(part) and part.parent.stat().st_mode & stat.S_IWOTH
        for part in (folder, *folder.parents)
    )


def _is_own(path: Path) -> bool:
    return path.stat().st_uid in {0, os.geteuid()}


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


# Keep secrets out of the environment that the kernel shows in /proc/PID/environ.


SECRET_VARIABLES = (
    "GPUCOORD_ADMIN_PASSWORD",
    "GPUCOORD_DATABASE_URL",
    "DATABASE_URL",
    "GPUCOORD_TOKEN",
    "GPUCOORD_LDAP_BIND_PASSWORD",
    "GPUCOORD_OIDC_CLIENT_SECRET",
    "GPUCOORD_JOIN_TOKEN",
    "PGPASSWORD",
)
# Fields of /proc/self/stat after the name: where the first environment begins and ends.
ENV_START, ENV_END = 47, 48


def hide() -> None:
    """Overwrite the secrets in this process's environment.

    `os.environ` keeps them for the settings. Processes that are forked or started later do not show
    them.
    """
    for name in SECRET_VARIABLES:
        if name in os.environ:
            # Only the C library's copy; os.environ is not changed.
            os.unsetenv(name)
    _overwrite()


def _overwrite() -> None:
    """Overwrite the memory in which the environment was passed, which the kernel shows."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end = int(fields[ENV_START]), int(fields[ENV_END])
        if not 0 < start < end:
            return
        place = start
        for entry in ctypes.string_at(start, end - start).split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name.decode(errors="replace") in SECRET_VARIABLES:
                ctypes.memset(place + len(name) + 1, 0, len(value))
            place += len(entry) + 1
