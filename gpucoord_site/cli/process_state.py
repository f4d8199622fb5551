"""Soft limits and primary group of this process, which a job on this machine takes over."""

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
