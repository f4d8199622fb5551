"""Facts: soft limits of a process that a job takes over from its shell. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Names as in limits.conf and in Python's resource.RLIMIT_…, and the options of ulimit.
NAMES = {
    "as": "-v", "core": "-c", "cpu": "-t", "data": "-d", "fsize": "-f", "memlock": "-l",
    "msgqueue": "-q", "nofile": "-n", "nproc": "-u", "sigpending": "-i", "stack": "-s",
}  # fmt: skip
UNLIMITED = "unlimited"
INFINITE = -1
LARGEST = 2**63 - 1
# Of a job without a shell, as a login has them; others are as high as the service may set them.
# They are not the service's own, whose nofile is high for its connections.
OF_A_LOGIN = {"core": 0, "nofile": 1024, "stack": 8 * 1024**2}

Limits = Mapping[str, int | str]


def problem(name: str, value: Any) -> str:
    """Why this can't be a limit; "" = it can."""
    if name not in NAMES:
        return f"There is no limit {name[:40]!a}; the limits are {', '.join(NAMES)}."
    is_amount = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST
    if is_amount or value == UNLIMITED:
        return ""
    return f'Write the limit {name} as a whole number, or "{UNLIMITED}".'


def complete(limits: Limits) -> dict[str, int]:
    """The soft limits of a job, for the runner: -1 = unlimited."""
    rest = dict.fromkeys(NAMES, INFINITE) | OF_A_LOGIN
    return rest | {n: INFINITE if v == UNLIMITED else int(v) for n, v in limits.items()}


def above(limits: Limits, hard: Mapping[str, int]) -> dict[str, str]:
    """The limits that are above the hard limits of this server, and what the job gets instead.

    An unlimited one counts as the highest possible value.
    """
    return {
        f"limit {name}": f"{value}; at most {hard[name]} on this server"
        for name, value in limits.items()
        if value != UNLIMITED and INFINITE < hard.get(name, INFINITE) < int(value)
    }
