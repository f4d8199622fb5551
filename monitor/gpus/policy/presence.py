"""Presence of an interactive user on each GPU, as a state machine.

A program outside the queue shows presence by its memory above the baseline of the desktop, by its
use, or by its name. Background graphics processes (X, compositor) are the desktop: a quiet level of
memory that lasts long enough is learned as their baseline, and memory above it still counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.accounts import is_person
from monitor.facts.readings import (
    BaselineProcess,
    GpuReading,
    Health,
    OwnerReading,
    Presence,
    ProcessReading,
    Snapshot,
)
from monitor.facts.thresholds import threshold

# Thresholds for the presence of interactive users on a GPU.

# Desktop components of the usual systems.
COMPOSITORS = (
    "Hyprland", "Xorg", "Xwayland", "cinnamon", "cosmic-comp", "gdm-x-session", "gnome-shell",
    "kwin_wayland", "kwin_x11", "labwc", "marco", "mutter", "plasmashell", "sway", "weston",
    "xfwm4",
)  # fmt: skip


# Use of a GPU in % by programs outside the queue: present above the first, absent below the second.
ENTER_USE_PCT, LEAVE_USE_PCT = 50.0, 30.0
# A user is absent below this part of the memory that shows presence.
LEAVE_MEMORY_PART = 0.5
# Seconds for which a user must be present before jobs yield, in two consecutive readings.
LATCH_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PresencePolicy:
    """Interactive users of a GPU, and how jobs yield to them."""

    # fmt: off
    enabled: bool = threshold(False, "Yield to interactive users",
        "Jobs leave a GPU while a program outside the queue uses it. Other GPUs are not affected.")
    enter_memory_mib: float = threshold(256.0, "Present above this memory", unit="MiB", ge=1,
        help="Memory held by programs outside the queue, without the desktop's own memory. "
             "The user is absent below half of it. GPU use above 50 % shows presence too.")
    enter_compute_memory_mib: float = threshold(64.0,
        "Present above this memory of compute processes", unit="MiB", ge=1,
        help="Memory held by users' compute processes outside the queue. The user is absent below "
             "half of it.")
    clear_s: float = threshold(60.0, "Delay before jobs return", unit="s", ge=0, le=3600,
        help="The user must be absent for this time.")
    yields: Literal["all", "preemptible", "none"] = threshold("preemptible", "Jobs that yield",
        "all = every job on the GPU; preemptible = only preemptible jobs; none = running jobs "
        "stay and only new jobs avoid the GPU.")
    max_grace_s: float = threshold(2.0, "Maximum grace period", unit="s", ge=0, le=600,
        help="A yielding job is killed after this time, even if it requested a longer grace "
             "period. With the default values the GPU is free within 6 s.")
    exclusive: tuple[str, ...] = threshold((), "Programs that always count",
        "Program names, such as a game or a renderer. They count as present at any use.")
    ignored: tuple[str, ...] = threshold(COMPOSITORS, "Programs that never count",
        "Program names, such as desktop components.")
    # fmt: on

    def conflicts(self) -> dict[str, str]:
        if both := sorted(set(self.exclusive) & set(self.ignored)):
            return {"exclusive": f"{both[0]} is in both lists of programs"}
        return {}


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
        _resident(by_program.get(program), program, held, before is None, now)
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


MIB = 1024**2


class Sign(StrEnum):
    """The sign of presence on one GPU.

    absent: below the threshold of leaving · between: below the threshold of coming · present: above
    it · listed: a program that counts by its name · unknown: not measured.
    """

    ABSENT = "absent"
    BETWEEN = "between"
    PRESENT = "present"
    LISTED = "listed"
    UNKNOWN = "unknown"


Wait = Callable[[PresencePolicy], float]


def _at_once(_policy: PresencePolicy) -> float:
    return 0.0


def _latch(_policy: PresencePolicy) -> float:
    return LATCH_S


def _clear(policy: PresencePolicy) -> float:
    return policy.clear_s


# (state, sign) -> (next state, seconds that the state must have lasted). Other pairs change
# nothing.
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
    """The next state, if the current one has lasted `lasted_s`."""
    following, wait = TABLE.get((state, sign), (state, _at_once))
    return following if lasted_s >= wait(policy) else state


class PresenceFinding(Struct, frozen=True):
    """The sign of one snapshot; `by`: the process with the strongest sign."""

    sign: Sign
    by: ProcessReading | None = None


def look(
    snapshot: Snapshot, before: Sequence[OwnerReading], policy: PresencePolicy
) -> tuple[OwnerReading, ...]:
    """The presence on each GPU after this snapshot; `before`: the presence before it."""
    previous = {reading.gpu_uuid: reading for reading in before}
    here: dict[str, list[ProcessReading]] = {gpu.uuid: [] for gpu in snapshot.gpus}
    for process in snapshot.processes:
        if process.job_ref is None and process.program not in policy.ignored:
            here.setdefault(process.gpu_uuid, []).append(process)
    looked = [
        _looked(gpu, previous.get(gpu.uuid), here[gpu.uuid], policy, snapshot.at)
        for gpu in snapshot.gpus
    ]
    uuids = {reading.gpu_uuid for reading in looked}
    return (*looked, *(reading for reading in before if reading.gpu_uuid not in uuids))


def _looked(
    gpu: GpuReading,
    old: OwnerReading | None,
    others: Sequence[ProcessReading],
    policy: PresencePolicy,
    now: datetime,
) -> OwnerReading:
    residents = learned(old.residents if old else None, others, policy, now)
    old = old or OwnerReading(gpu_uuid=gpu.uuid, presence=Presence.FREE, since=now)
    sign = sign_of(gpu, others, residents, policy, old.pid)
    state = move(old.presence, sign.sign, (now - old.since).total_seconds(), policy)
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
    return _named(following, sign.by)


def others_on(reading: OwnerReading, snapshot: Snapshot, policy: PresencePolicy) -> int:
    """Number of processes outside the queue on the GPU."""
    return sum(
        p.gpu_uuid == reading.gpu_uuid and p.job_ref is None and p.program not in policy.ignored
        for p in snapshot.processes
    )


def changes(
    before: Sequence[OwnerReading], after: Sequence[OwnerReading]
) -> tuple[list[OwnerReading], list[OwnerReading]]:
    """Users who came or left. Users who were only suspected are not reported."""
    reported = {reading.gpu_uuid for reading in before if reading.is_reported}
    closed = {reading.gpu_uuid for reading in after if reading.keeps_closed}
    came = [
        reading
        for reading in after
        if reading.presence is Presence.OWNER and reading.gpu_uuid not in reported
    ]
    return came, [r for r in before if r.is_reported and r.gpu_uuid not in closed]


def _named(reading: OwnerReading, by: ProcessReading | None) -> OwnerReading:
    """The user stays named until the GPU is free."""
    if by is None:
        return reading
    return replace(reading, program=by.program, user=by.user, pid=by.pid)


def sign_of(
    gpu: GpuReading,
    others: Sequence[ProcessReading],
    residents: Iterable[BaselineProcess],
    policy: PresencePolicy,
    told_pid: int | None = None,
) -> PresenceFinding:
    """The sign of `others`, the processes outside the queue; hysteresis for a reported user."""
    if gpu.health is Health.LOST:
        return PresenceFinding(Sign.UNKNOWN)
    above = without_residents(others, residents)
    listed = [p for p in others if p.program in policy.exclusive]
    if listed:
        return PresenceFinding(Sign.LISTED, _most_telling(listed, above, told_pid))
    memory_mib = sum(above.values()) / MIB
    use_pct = sum(p.sm_pct or 0.0 for p in others)
    telling = _most_telling(others, above, told_pid)
    computing_mib = sum(above.get(p.pid, 0) for p in others if _is_computing(p)) / MIB
    encodes = any(p.encoder_pct for p in others)
    if (
        encodes
        or memory_mib >= policy.enter_memory_mib
        or computing_mib >= policy.enter_compute_memory_mib
        or use_pct >= ENTER_USE_PCT
    ):
        return PresenceFinding(Sign.PRESENT, telling)
    if any(p.memory_bytes is None for p in others):
        return PresenceFinding(Sign.UNKNOWN)
    holds_little = (
        memory_mib < LEAVE_MEMORY_PART * policy.enter_memory_mib
        and computing_mib < LEAVE_MEMORY_PART * policy.enter_compute_memory_mib
    )
    if holds_little and use_pct < LEAVE_USE_PCT:
        return PresenceFinding(Sign.ABSENT)
    return PresenceFinding(Sign.BETWEEN, telling)


def _is_computing(process: ProcessReading) -> bool:
    """A process without graphics. It shows presence only above the larger memory threshold."""
    is_users = process.uid is None or is_person(process.uid)
    return is_users and "G" not in process.kinds


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
