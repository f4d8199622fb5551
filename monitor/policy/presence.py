"""Policy: whether somebody uses a GPU for themselves, as a state machine of each GPU.

Somebody is there by a program outside the queue: by its memory above what residents (the desktop
itself) always hold, by its use, or by its name. Unknown changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from monitor.owner_facts import OwnerReading, Presence, Resident
from monitor.policy.presence_policy import PresencePolicy
from monitor.policy.residents import learned, without_residents
from monitor.readings import GpuReading, Health, ProcessReading, Snapshot

MIB = 1024**2


class Sign(StrEnum):
    """absent: below what leaving takes · between: below what coming takes · present: above ·

    listed: a program that counts by its name · unknown: it can't be told.
    """

    ABSENT = "absent"
    BETWEEN = "between"
    PRESENT = "present"
    LISTED = "listed"
    UNKNOWN = "unknown"


Wait = Callable[[PresencePolicy], float]


def _at_once(_policy: PresencePolicy) -> float:
    return 0.0


def _latch(policy: PresencePolicy) -> float:
    return policy.latch_s


def _clear(policy: PresencePolicy) -> float:
    return policy.clear_s


# (state, sign) -> (the next state, how long the state must have lasted). What is not here stays.
TABLE: dict[tuple[Presence, Sign], tuple[Presence, Wait]] = {
    (Presence.FREE, Sign.PRESENT): (Presence.SUSPECT, _at_once),
    (Presence.FREE, Sign.LISTED): (Presence.OWNER, _at_once),
    (Presence.SUSPECT, Sign.ABSENT): (Presence.FREE, _at_once),
    (Presence.SUSPECT, Sign.BETWEEN): (Presence.FREE, _latch),
    (Presence.SUSPECT, Sign.PRESENT): (Presence.OWNER, _latch),
    (Presence.SUSPECT, Sign.LISTED): (Presence.OWNER, _at_once),
    (Presence.OWNER, Sign.ABSENT): (Presence.LEAVING, _at_once),
    (Presence.LEAVING, Sign.ABSENT): (Presence.FREE, _clear),
    (Presence.LEAVING, Sign.BETWEEN): (Presence.OWNER, _at_once),
    (Presence.LEAVING, Sign.PRESENT): (Presence.OWNER, _at_once),
    (Presence.LEAVING, Sign.LISTED): (Presence.OWNER, _at_once),
}


def move(state: Presence, sign: Sign, lasted_s: float, policy: PresencePolicy) -> Presence:
    """The state after one more look, in which the state has lasted `lasted_s`."""
    following, wait = TABLE.get((state, sign), (state, _at_once))
    return following if lasted_s >= wait(policy) else state


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look at a GPU tells; `by`: the process that tells most."""

    sign: Sign
    by: ProcessReading | None = None


def look(
    snapshot: Snapshot, before: Sequence[OwnerReading], policy: PresencePolicy
) -> tuple[OwnerReading, ...]:
    """Where each GPU stands after this snapshot; `before`: where each stood until now."""
    known = {reading.gpu_uuid: reading for reading in before}
    here: dict[str, list[ProcessReading]] = {gpu.uuid: [] for gpu in snapshot.gpus}
    for process in snapshot.processes:
        if process.job_ref is None and process.program not in policy.ignored:
            here.setdefault(process.gpu_uuid, []).append(process)
    looked = [
        _looked(gpu, known.get(gpu.uuid), here[gpu.uuid], policy, snapshot.at)
        for gpu in snapshot.gpus
    ]
    seen = {reading.gpu_uuid for reading in looked}
    return (*looked, *(reading for reading in before if reading.gpu_uuid not in seen))


def _looked(
    gpu: GpuReading,
    old: OwnerReading | None,
    others: Sequence[ProcessReading],
    policy: PresencePolicy,
    now: datetime,
) -> OwnerReading:
    residents = learned(old.residents if old else None, others, policy, now)
    old = old or OwnerReading(gpu_uuid=gpu.uuid, presence=Presence.FREE, since=now)
    found = sign_of(gpu, others, residents, policy, old.pid)
    state = move(old.presence, found.sign, (now - old.since).total_seconds(), policy)
    if state is Presence.FREE:
        since = old.since if old.presence is Presence.FREE else now
        return OwnerReading(
            gpu_uuid=gpu.uuid, presence=Presence.FREE, since=since, residents=residents
        )
    since = old.since if state is old.presence else now
    following = replace(
        old,
        presence=state,
        since=since,
        came_at=old.came_at or now,
        until=_until(state, since, policy),
        residents=residents,
    )
    return _named(following, found.by)


def changes(
    before: Sequence[OwnerReading], after: Sequence[OwnerReading]
) -> tuple[list[OwnerReading], list[OwnerReading]]:
    """Who came, and who has gone: nothing is told of those who were there for a moment."""
    told = {reading.gpu_uuid for reading in before if reading.is_told}
    kept = {reading.gpu_uuid for reading in after if reading.keeps_closed}
    came = [
        reading
        for reading in after
        if reading.presence is Presence.OWNER and reading.gpu_uuid not in told
    ]
    return came, [r for r in before if r.is_told and r.gpu_uuid not in kept]


def _named(reading: OwnerReading, by: ProcessReading | None) -> OwnerReading:
    """Who has left is still told until the GPU is free."""
    if by is None:
        return reading
    return replace(reading, program=by.program, user=by.user, pid=by.pid)


def sign_of(
    gpu: GpuReading,
    others: Sequence[ProcessReading],
    residents: Iterable[Resident],
    policy: PresencePolicy,
    told_pid: int | None = None,
) -> Finding:
    """What `others`, the processes there that are not ours, tell; who was told stays told."""
    if gpu.health is Health.LOST:
        return Finding(Sign.UNKNOWN)
    above = without_residents(others, residents)
    listed = [p for p in others if p.program in policy.exclusive]
    if listed:
        return Finding(Sign.LISTED, _most_telling(listed, above, told_pid))
    memory_mib = sum(above.values()) / MIB
    use_pct = sum(p.sm_pct or 0.0 for p in others)
    telling = _most_telling(others, above, told_pid)
    if memory_mib >= policy.enter_memory_mib or use_pct >= policy.enter_use_pct:
        return Finding(Sign.PRESENT, telling)
    if any(p.memory_bytes is None for p in others):
        return Finding(Sign.UNKNOWN)
    if memory_mib < policy.leave_memory_mib and use_pct < policy.leave_use_pct:
        return Finding(Sign.ABSENT)
    return Finding(Sign.BETWEEN, telling)


def _most_telling(
    processes: Sequence[ProcessReading], above: Mapping[int, int], told_pid: int | None
) -> ProcessReading | None:
    def weight(process: ProcessReading) -> tuple[bool, int, float, int]:
        held = above.get(process.pid, 0)
        return (process.pid == told_pid, held, process.sm_pct or 0.0, -process.pid)

    telling = [process for process in processes if above.get(process.pid) or process.sm_pct]
    return max(telling or processes, key=weight, default=None)


def _until(presence: Presence, since: datetime, policy: PresencePolicy) -> datetime | None:
    left = presence is Presence.LEAVING
    return since + timedelta(seconds=policy.clear_s) if left else None
