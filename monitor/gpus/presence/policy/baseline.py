"""Background graphics processes (X, compositor) whose usual memory does not count as presence.

A quiet level of memory that lasts long enough is learned as the baseline; memory above it still
counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from monitor.facts.presence import BaselineProcess
from monitor.facts.readings import ProcessReading
from monitor.gpus.presence.policy.thresholds import LEAVE_USE_PCT, PresencePolicy

# A level that grows by less is unchanged.
SAME_LEVEL, SAME_BYTES = 1.25, 32 * 1024**2
# Maximum number of programs per GPU.
MOST = 16

# A graphics program that stays quiet for this time is added to the baseline, with its memory.
LEARN_AFTER = timedelta(minutes=10)


def learned(
    before: Sequence[BaselineProcess] | None,
    others: Sequence[ProcessReading],
    policy: PresencePolicy,
    now: datetime,
) -> tuple[BaselineProcess, ...]:
    """The baselines after one more snapshot; `before` None: this is the first one."""
    levels = _levels(others, policy)
    by_program = {resident.program: resident for resident in before or ()}
    updated = [
        _resident(by_program.get(program), program, held, before is None, policy, now)
        for program, held in levels.items()
    ]
    away = [
        replace(r, level_bytes=r.memory_bytes, level_since=now)
        for r in by_program.values()
        if r.program not in levels and r.memory_bytes
    ]
    largest = sorted([*updated, *away], key=lambda r: (-r.memory_bytes, r.program))[:MOST]
    return tuple(sorted(largest, key=lambda r: r.program))


def without_residents(
    others: Iterable[ProcessReading], residents: Iterable[BaselineProcess]
) -> dict[int, int]:
    """By pid, the memory above the program's baseline; 0 if unknown."""
    left = {resident.program: resident.memory_bytes for resident in residents}
    above: dict[int, int] = {}
    for process in others:
        held = process.memory_bytes or 0
        if only_draws(process) and process.program in left:
            baseline = min(held, left[process.program])
            left[process.program] -= baseline
            held -= baseline
        above[process.pid] = above.get(process.pid, 0) + held
    return above


def only_draws(process: ProcessReading) -> bool:
    return process.kinds == "G"


def _levels(others: Iterable[ProcessReading], policy: PresencePolicy) -> dict[str, int]:
    """Memory of quiet graphics-only programs, by name."""
    held: dict[str, int] = {}
    loud: set[str] = set()
    for process in others:
        if process.program is None or not only_draws(process):
            continue
        if process.memory_bytes is None or (process.sm_pct or 0.0) >= LEAVE_USE_PCT:
            loud.add(process.program)
        held[process.program] = held.get(process.program, 0) + (process.memory_bytes or 0)
    return {
        program: total
        for program, total in held.items()
        if program not in loud and program not in policy.exclusive
    }


def _resident(
    old: BaselineProcess | None,
    program: str,
    held: int,
    first: bool,
    policy: PresencePolicy,
    now: datetime,
) -> BaselineProcess:
    if old is None:
        usual = held if first else 0
        return BaselineProcess(
            program=program, memory_bytes=usual, level_bytes=held, level_since=now
        )
    if held > old.level_bytes * SAME_LEVEL + SAME_BYTES:
        return replace(old, level_bytes=held, level_since=now)
    if now - old.level_since >= LEARN_AFTER:
        return replace(old, memory_bytes=max(held, old.memory_bytes))
    return old
