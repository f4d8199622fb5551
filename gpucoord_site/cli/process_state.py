"""Properties of this process that its jobs take over: soft limits, group, programs on PATH."""

from __future__ import annotations

import os
import resource

from scheduler.facts.limits import NAMES, UNLIMITED

NOT_A_MEMBER = "you are no member of it"


def soft_limits() -> dict[str, int | str]:
    """As `ulimit -S -a` shows them, by the names of `NAMES`."""
    soft = {
        name: resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[0] for name in NAMES
    }
    return {n: UNLIMITED if v == resource.RLIM_INFINITY else v for n, v in soft.items()}


def chosen_group() -> tuple[str, str]:
    """The group of `newgrp` or `sg`, and why a job can't have it; "" = the account's own."""
    import grp
    import pwd

    gid = os.getegid()
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:
        return "", ""
    if gid == entry.pw_gid:
        return "", ""
    try:
        name = grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid), "it has no name"
    is_member = gid in os.getgrouplist(entry.pw_name, entry.pw_gid)
    return name, "" if is_member else NOT_A_MEMBER


def program_path(name: str, path: str | None = None) -> str | None:
    """As shutil.which, whose import takes a fiftieth of a submission; path: instead of PATH."""
    folders = (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep)
    folders = [""] if "/" in name else folders
    for candidate in (os.path.join(folder, name) for folder in folders):  # noqa: PTH118
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):  # noqa: PTH113
            return candidate
    return None
