"""Facts: limits and usage of users, and time windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The limits of a user, joined from the user's, the groups' and the default quota.

    None = no limit. share_pct: entitled share of the machine's GPUs. gpu_minutes: per day.
    memory_bytes: GPU memory at a time. reserved_pct: the part of the share that only
    user-initiated jobs may take. gpu_share_pct: default and most of a job's GPU time where it
    shares a GPU. prompts, prompt_tokens: requests to models and their tokens, per day.
    exclusive_batches: large batches may unload models and take GPUs for themselves.
    share_is_limit: share_pct is also a limit, at any time.
    """

    share_pct: float | None = None
    gpu_minutes: float | None = None
    gpus: int | None = None
    jobs: int | None = None
    memory_bytes: int | None = None
    queued: int | None = None
    share_is_limit: bool = False
    reserved_pct: float = 20.0
    gpu_share_pct: int | None = None
    priority: int | None = None
    prompts: int | None = None
    prompt_tokens: int | None = None
    exclusive_batches: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """GPU-minutes of a day; they do not decay. zone: time zone of `resets_at`.

    committed: what running jobs may still use until their limits.
    """

    limit: float
    spent: float
    committed: float
    resets_at: datetime
    zone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """An approved time window: weekly from `start` to `end` in `zone`; days: 0 = Monday.

    An end that is not after the start is on the next day. gpu_uuids: () = all GPUs.
    kept: True = share_pct of the GPUs is reserved for the holder; False = the holder may use them
    only then. members: the users of the holder, which is a user or a group. The window is not in
    force before first_day and after last_day.
    """

    id: int
    holder: str
    members: frozenset[str]
    days: tuple[int, ...]
    start: time
    end: time
    zone: str
    gpu_uuids: tuple[str, ...] = ()
    share_pct: float = 100.0
    kept: bool = True
    first_day: date | None = None
    last_day: date | None = None

    def __hash__(self) -> int:
        # Times of windows are looked up thousands of times in a forecast.
        return self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The GPUs that shares are shares of. gpu_bytes: the mean memory of one; None = unknown."""

    gpu_uuids: tuple[str, ...] = ()
    gpu_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAccount:
    """The account of a user at an instant.

    weight: entitled part of the capacity, 0..1. usage: decayed mean of the used part of the
    capacity, 0..1 (None = never seen). target: target share, 0..1. gpus, jobs, memory_bytes: held
    by placed jobs. charge: GPUs that jobs reserve (whole, or the declared part of a shared GPU)
    plus the use by other processes. owed: GPUs that the user held too few lately, -1..1.
    """

    owner: str
    quota: Quota = field(default_factory=Quota)
    weight: float = 0.0
    usage: float | None = None
    target: float = 0.0
    gpus: int = 0
    jobs: int = 0
    memory_bytes: int = 0
    charge: float = 0.0
    owed: float = 0.0
    capacity: Capacity = field(default_factory=Capacity)
    budget: Budget | None = None
    windows: tuple[Window, ...] = ()

    @property
    def use(self) -> float | None:
        """Current use as a part of all GPUs, 0 to 1. None: there are no GPUs."""
        gpus = len(self.capacity.gpu_uuids)
        return min(1.0, self.charge / gpus) if gpus else None


# Soft limits of a process that a job takes over from its shell. Standard library only.


# Names as in limits.conf and in Python's resource.RLIMIT_…, and the options of ulimit.
NAMES = {
    "as": "-v", "core": "-c", "cpu": "-t", "data": "-d", "fsize": "-f", "memlock": "-l",
    "msgqueue": "-q", "nofile": "-n", "nproc": "-u", "sigpending": "-i", "stack": "-s",
}  # fmt: skip
UNLIMITED = "unlimited"
IN_BYTES = {"as", "core", "data", "fsize", "memlock", "msgqueue", "stack"}
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


def limit_texts(limits: Limits) -> list[tuple[str, str]]:
    """The limits that are not unlimited, by name, with units; then the others."""
    texts = [
        (name, f"{value / 1024**2:g} MiB" if name in IN_BYTES and value else str(value))
        for name, value in limits.items()
        if value != UNLIMITED and isinstance(value, int)
    ]
    return texts if len(texts) == len(limits) else [*texts, ("others", UNLIMITED)]


def above(limits: Limits, hard: Mapping[str, int]) -> dict[str, str]:
    """The limits that are above the hard limits of this server, and what the job gets instead.

    An unlimited one counts as the highest possible value.
    """
    return {
        f"limit {name}": f"{value}; at most {hard[name]} on this server"
        for name, value in limits.items()
        if value != UNLIMITED and INFINITE < hard.get(name, INFINITE) < int(value)
    }
