"""Keep secrets out of the environment that the kernel shows in /proc/PID/environ."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

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
