"""Edge: close folders to a process and its children with Landlock (Linux 5.13 and later).

Landlock grants access, it does not deny it. So everything is granted except the closed folders:
for each folder above a closed one, the entries that exist now are granted one by one. New entries
that are created there later are not accessible. Listing folders and executing files stay allowed.
Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG, PATH_BENEATH = 1, 1
PR_SET_NO_NEW_PRIVS = 38
# Bits of LANDLOCK_ACCESS_FS_*.
WRITE_FILE, READ_FILE, TRUNCATE = 1 << 1, 1 << 2, 1 << 14
REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
REFER = 1 << 13
# Signals reach only processes in the same Landlock domain.
SCOPE_SIGNAL = 1 << 1
ABI_REFER, ABI_TRUNCATE, ABI_SCOPES = 2, 3, 6
_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """The kernel's Landlock version; 0 = it has none, or it is switched off."""
    abi: int = _libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION_FLAG)
    return max(0, abi)


def close(closed: Iterable[str], opened: Sequence[str], readable: Sequence[str]) -> None:
    """Close these folders to this process for good, except the opened paths inside them.

    `readable` paths can only be read. Raises OSError when the kernel refuses.
    """
    abi = version()
    access = WRITE_FILE | READ_FILE | REMOVE_AND_MAKE
    access |= (REFER if abi >= ABI_REFER else 0) | (TRUNCATE if abi >= ABI_TRUNCATE else 0)
    wanted = [access, 0, SCOPE_SIGNAL] if abi >= ABI_SCOPES else [access]
    attributes = struct.pack(f"={len(wanted)}Q", *wanted)
    ruleset = _call(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    try:
        for path in granted({os.path.realpath(path) for path in closed}):
            _grant(ruleset, path, access)
        for path in opened:
            _grant(ruleset, path, access)
        for path in readable:
            _grant(ruleset, path, READ_FILE)
        if _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
        _call(RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def granted(closed: set[str]) -> Iterator[str]:
    """The paths that together hold everything but the closed ones. No path is a link."""
    above = {parent for path in closed for parent in _parents(path)}
    todo = ["/"]
    while todo:
        path = todo.pop()
        if path in closed:
            continue
        if path not in above:
            yield path
            continue
        with os.scandir(path) as entries:
            todo += [entry.path for entry in entries if not entry.is_symlink()]


def _parents(path: str) -> Iterator[str]:
    while path != "/":
        path = os.path.dirname(path)  # noqa: PTH120
        yield path


def _grant(ruleset: int, path: str, access: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        # Removed meanwhile.
        return
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            access &= WRITE_FILE | READ_FILE | TRUNCATE
        _call(ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", access, handle), 0)
    finally:
        os.close(handle)


def problem(closed: Iterable[str]) -> str:
    """Why these folders cannot be closed to jobs; "" = they can."""
    if version() == 0:
        return "this kernel has no Landlock, or it is switched off"
    try:
        for _ in granted({os.path.realpath(path) for path in closed}):
            pass
    except OSError as error:
        return f"{error.filename} can't be listed: {error.strerror}"
    return ""


def _call(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(number, *arguments)
    if result < 0:
        code = ctypes.get_errno() or errno.EINVAL
        raise OSError(code, os.strerror(code))
    return result
