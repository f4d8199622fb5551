"""Edge: entries of OS accounts by NSS. An account whose directory is away is not a missing one.

getpwnam returns nothing in both cases. Therefore, after it found nothing, the NSS module of each
directory in the passwd line of nsswitch.conf is asked for its own answer.
"""

from __future__ import annotations

import ctypes
import pwd
import re
from pathlib import Path

NSSWITCH = Path("/etc/nsswitch.conf")
# These read the files and the processes of this machine only.
LOCAL_SERVICES = frozenset({"files", "compat", "db", "systemd"})
# enum nss_status of glibc. 1 = success, -1 = the service is unavailable, -2 = try again.
NOT_FOUND = 0
BUFFER_BYTES = 65_536


class _Passwd(ctypes.Structure):
    """struct passwd of glibc."""

    _fields_ = (
        ("pw_name", ctypes.c_char_p),
        ("pw_passwd", ctypes.c_char_p),
        ("pw_uid", ctypes.c_uint32),
        ("pw_gid", ctypes.c_uint32),
        ("pw_gecos", ctypes.c_char_p),
        ("pw_dir", ctypes.c_char_p),
        ("pw_shell", ctypes.c_char_p),
    )


class ServiceAway(LookupError):
    """This NSS service does not answer, so it is unknown whether the account exists."""


def entry(name: str) -> pwd.struct_passwd | None:
    """The entry of this account; None: there is none. Raises ServiceAway."""
    try:
        return pwd.getpwnam(name)
    except ValueError:
        return None
    except KeyError:
        pass
    for service in directories():
        if status(service, name) not in (None, NOT_FOUND):
            raise ServiceAway(service)
    return None


def directories() -> list[str]:
    """The NSS services for accounts that are not of this machine, in their order."""
    try:
        text = NSSWITCH.read_text(errors="replace")
    except OSError:
        return []
    line = re.search(r"^[ \t]*passwd[ \t]*:([^#\n]*)", text, re.MULTILINE)
    words = re.sub(r"\[[^\[\]]*\]", " ", line[1]).split() if line else []
    return [word for word in words if re.fullmatch(r"\w+", word) and word not in LOCAL_SERVICES]


def status(service: str, name: str) -> int | None:
    """The answer of the service's NSS module (enum nss_status); None: it is not installed."""
    try:
        module = ctypes.CDLL(f"libnss_{service}.so.2")
        look_up = getattr(module, f"_nss_{service}_getpwnam_r")
    except (OSError, AttributeError):
        return None
    account, problem = _Passwd(), ctypes.c_int()
    buffer = ctypes.create_string_buffer(BUFFER_BYTES)
    size = ctypes.c_size_t(BUFFER_BYTES)
    arguments = (ctypes.byref(account), buffer, size, ctypes.byref(problem))
    return int(look_up(name.encode(errors="surrogateescape"), *arguments))
