"""Policy: programs that only draw and are always there; their usual memory tells of nobody.

A level of memory that such a program keeps quietly for long enough is learned; what it holds above
that still counts. What is there quietly at the very first look counts as always there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from monitor.owner_facts import Resident
from monitor.policy.presence_policy import PresencePolicy
from monitor.readings import ProcessReading

# A level that grows by less is the same level.
SAME_LEVEL, SAME_BYTES = 1.25, 32 * 1024**2
# As many programs of a GPU are remembered.
MOST = 16


def learned(
    before: Sequence[Resident] | None,
    others: Sequence[ProcessReading],
    policy: PresencePolicy,
    now: datetime,
) -> tuple[Resident, ...]:
    """What is known of residents after one more look; before None = this is the first look."""
    levels = _levels(others, policy)
    known = {resident.program: resident for resident in before or ()}
    found = [
        _resident(known.get(program), program, held, before is None, policy, now)
        for program, held in levels.items()
    ]
    away = [
        replace(r, level_bytes=r.memory_bytes, level_since=now)
        for r in known.values()
        if r.program not in levels and r.memory_bytes
    ]
    kept = sorted([*found, *away], key=lambda r: (-r.memory_bytes, r.program))[:MOST]
    return tuple(sorted(kept, key=lambda r: r.program))


def without_residents(
    others: Iterable[ProcessReading], residents: Iterable[Resident]
) -> dict[int, int]:
    """By pid, how much each holds above what its program usually holds there; 0 if unknown."""
    left = {resident.program: resident.memory_bytes for resident in residents}
    above: dict[int, int] = {}
    for process in others:
        held = process.memory_bytes or 0
        if only_draws(process) and process.program in left:
            spared = min(held, left[process.program])
            left[process.program] -= spared
            held -= spared
        above[process.pid] = above.get(process.pid, 0) + held
    return above


def only_draws(process: ProcessReading) -> bool:
    return process.kinds == "G"


def _levels(others: Iterable[ProcessReading], policy: PresencePolicy) -> dict[str, int]:
    """What quiet programs that only draw hold, by name."""
    held: dict[str, int] = {}
    loud: set[str] = set()
    for process in others:
        if process.program is None or not only_draws(process):
            continue
        if process.memory_bytes is None or (process.sm_pct or 0.0) >= policy.leave_use_pct:
            loud.add(process.program)
        held[process.program] = held.get(process.program, 0) + (process.memory_bytes or 0)
    return {
        program: total
        for program, total in held.items()
        if program not in loud and program not in policy.exclusive
    }


def _resident(
    old: Resident | None,
    program: str,
    held: int,
    first: bool,
    policy: PresencePolicy,
    now: datetime,
) -> Resident:
    if old is None:
        usual = held if first else 0
        return Resident(program=program, memory_bytes=usual, level_bytes=held, level_since=now)
    if held > old.level_bytes * SAME_LEVEL + SAME_BYTES:
        return replace(old, level_bytes=held, level_since=now)
    if now - old.level_since >= timedelta(minutes=policy.learn_minutes):
        return replace(old, memory_bytes=max(held, old.memory_bytes))
    return old
