"""Policy: what keeps a job waiting whatever is free: a hold, a time, other jobs, its array."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from scheduler.blockers import Blocker, Tier
from scheduler.jobs import After
from scheduler.policy.calendar import moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What a waiting job's rows say. held_by "" = by gpucoord itself.

    refused: why the machine could not start it. pending: what it still waits for of other jobs;
    arrays: those of them that stand for all jobs of their array.
    """

    id: int
    held: str = ""
    held_by: str = ""
    begin_at: datetime | None = None
    retry_at: datetime | None = None
    failures: int = 0
    refused: str = ""
    array: int | None = None
    array_limit: int | None = None
    pending: tuple[tuple[int, After], ...] = ()
    arrays: frozenset[int] = frozenset()


def waits(
    conditions: Iterable[Condition],
    placed: Mapping[int, int],
    now: datetime,
    zone: str = "UTC",
) -> dict[int, tuple[Blocker, ...]]:
    """Who waits for what; who waits for none of it is not named.

    placed: how many jobs of each array have a place. The first of an array that could start take
    what its limit leaves, so that no pass starts more of them. zone: in which times are told.
    """
    found: dict[int, tuple[Blocker, ...]] = {}
    ready: dict[tuple[int, int], list[int]] = defaultdict(list)
    for one in conditions:
        if own := tuple(_own(one, now, zone)):
            found[one.id] = own
        elif one.array is not None and one.array_limit is not None:
            ready[one.array, one.array_limit].append(one.id)
    for (array, limit), ids in ready.items():
        reasons = (_array_limit(array, limit),)
        free = max(0, limit - placed.get(array, 0))
        found |= dict.fromkeys(sorted(ids)[free:], reasons)
    return found


def _own(one: Condition, now: datetime, zone: str) -> Iterable[Blocker]:
    if one.held:
        yield _held(one.held, one.held_by)
    if one.begin_at is not None and one.begin_at > now:
        yield _begins(one.begin_at, zone)
    if one.retry_at is not None and one.retry_at > now:
        yield _retries(one, one.retry_at, zone)
    for on, after in one.pending:
        yield _after(on, after, is_array=on in one.arrays)


def _held(reason: str, by: str) -> Blocker:
    code = "Held" if by else "TooManyRequeues"
    return Blocker(code=code, text=reason, tier=Tier.PERSON, holder=by or None)


def _array_limit(array: int, limit: int) -> Blocker:
    at_most = "1 job" if limit == 1 else f"{limit} jobs"
    text = f"You asked that at most {at_most} of array {array} run at a time."
    return Blocker(
        code="ArrayLimit",
        text=text,
        tier=Tier.NOT_YET,
        requested="1 place",
        available=f"0 of {limit}",
        holder=f"array {array}",
    )


def _begins(at: datetime, zone: str) -> Blocker:
    return Blocker(
        code="BeginTime",
        text=f"You asked that it begins no sooner than {moment(at, zone)}.",
        tier=Tier.NOT_YET,
        requested=at.isoformat(timespec="seconds"),
        until=at,
    )


def _retries(one: Condition, at: datetime, zone: str) -> Blocker:
    times = "once" if one.failures == 1 else f"{one.failures} times"
    what = f"could not be started ({one.refused})" if one.refused else f"failed {times}"
    return Blocker(
        code="Backoff",
        text=f"It {what}; the next try is {moment(at, zone)}.",
        tier=Tier.NOT_YET,
        requested=at.isoformat(timespec="seconds"),
        until=at,
    )


def _after(on: int, after: After, *, is_array: bool) -> Blocker:
    has_done = "succeeded" if after is After.SUCCESS else "ended"
    what = f"all jobs of array {on} have" if is_array else f"job {on} has"
    return Blocker(
        code="Dependency",
        text=f"It starts after {what} {has_done}.",
        tier=Tier.NOT_YET,
        requested=after.value,
        holder=f"array {on}" if is_array else f"job {on}",
    )
