"""The state of each GPU and its begin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.accounts import ASLEEP, JOB_KINDS, ClaimFact, ClaimKind
from monitor.facts.gpus import (
    IMPOSED,
    ClosureFact,
    ClosureKind,
    Condition,
    GpuState,
    IllegalGpuTransition,
    check_transition,
)
from monitor.facts.readings import GpuReading, Health, ProcessReading, Snapshot, idle_since

# Older drivers report some memory as used on an empty GPU; this is more.
HELD_BYTES = 1024**3
BROKEN = frozenset({GpuState.LOST, GpuState.FAILING})
# A job without a GPU process after this time counts as running on its GPU.
BOOTS_AT_MOST = timedelta(minutes=5)
# A claim may be committed after a sweep that began later than the claim.
COMMITTED_WITHIN = timedelta(seconds=2)
# The boot that each of these states follows.
_AFTER_BOOT = {
    GpuState.SCRIPT_BUSY: GpuState.BOOTING_SCRIPT,
    GpuState.LLM_READY: GpuState.BOOTING_LLM,
    GpuState.LLM_BUSY: GpuState.BOOTING_LLM,
}
# A model service below this use is waiting for requests.
LLM_BUSY_PCT = 5.0


class StateChange(Struct, frozen=True):
    """A change of a GPU from `old` to `reading`; `old` is None for a new GPU."""

    reading: GpuReading
    old: GpuReading | None

    @property
    def was(self) -> GpuState | None:
        return self.old.state if self.old else None


class States(Struct, frozen=True):
    """Readings with their states, the changes, and texts about illegal transitions."""

    gpus: tuple[GpuReading, ...]
    changes: tuple[StateChange, ...]
    faults: tuple[str, ...]


def state_of(
    gpu: GpuReading,
    processes: Sequence[ProcessReading],
    claims: Sequence[ClaimFact],
    now: datetime,
    *,
    paused: bool = False,
) -> GpuState:
    """`processes` and `claims` are those of this GPU; claims include ended, unreleased ones."""
    if gpu.health is Health.LOST:
        return GpuState.LOST
    if gpu.health is Health.FAILING:
        return GpuState.FAILING
    if paused:
        return GpuState.PAUSED
    if gpu.condition is Condition.THROTTLED:
        return GpuState.THROTTLED
    return _work(gpu, processes, claims, now)


def with_states(
    gpus: Sequence[GpuReading],
    processes: Iterable[ProcessReading],
    claims: Iterable[ClaimFact],
    before: Mapping[str, GpuReading],
    now: datetime,
    closures: Iterable[ClosureFact] = (),
    *,
    watched: bool = True,
) -> States:
    """Add the state to each reading. An illegal transition is reported, but the new state applies.

    `watched` is False after a gap in sampling, when any transition is possible.
    """
    on: dict[str, list[ProcessReading]] = defaultdict(list)
    for process in processes:
        on[process.gpu_uuid].append(process)
    claimed: dict[str, list[ClaimFact]] = defaultdict(list)
    for claim in claims:
        claimed[claim.gpu_uuid].append(claim)
    closed: dict[str, list[ClosureFact]] = defaultdict(list)
    for closure in closures:
        closed[closure.gpu_uuid].append(closure)
    readings: list[GpuReading] = []
    changes: list[StateChange] = []
    faults: list[str] = []
    for gpu in gpus:
        old, why = before.get(gpu.uuid), closed[gpu.uuid]
        paused = any(c.kind is ClosureKind.PAUSED for c in why)
        state = state_of(gpu, on[gpu.uuid], claimed[gpu.uuid], now, paused=paused)
        stays = old is not None and old.state is state
        since = (old.state_since if old and stays else None) or now
        text = " ".join([*(c.text for c in why), *_locks(claimed[gpu.uuid])]) or None
        idle = idle_since(
            gpu.utilization_pct, old.idle_since if old else None, now, watched=watched
        )
        readings.append(replace(gpu, state=state, state_since=since, closed=text, idle_since=idle))
        if not stays:
            changes.append(StateChange(readings[-1], old))
            faults += _fault(gpu, old, state, claimed[gpu.uuid]) if watched else []
    return States(tuple(readings), tuple(changes), tuple(faults))


def as_booked(snapshot: Snapshot, claims: Mapping[str, Sequence[ClaimFact]]) -> Snapshot:
    """The snapshot with the states that follow from claims that began or ended since its sweep.

    claims: by GPU, with ended ones whose memory may still be in use. Without this, a page would
    show the job of a GPU beside the state that a model left, for up to a sweep.
    """
    gpus = tuple(_booked(gpu, snapshot, claims.get(gpu.uuid, ())) for gpu in snapshot.gpus)
    is_same = all(new is old for new, old in zip(gpus, snapshot.gpus, strict=True))
    return snapshot if is_same else replace(snapshot, gpus=gpus)


def _booked(gpu: GpuReading, snapshot: Snapshot, claims: Sequence[ClaimFact]) -> GpuReading:
    edges = [t for c in claims for t in (c.since, c.until) if t is not None]
    changed = max(edges, default=None)
    if gpu.state is None or gpu.state in IMPOSED:
        return gpu
    if changed is None or changed < snapshot.at - COMMITTED_WITHIN:
        return gpu
    processes = [p for p in snapshot.processes if p.gpu_uuid == gpu.uuid]
    state = _work(gpu, processes, claims, max(snapshot.at, changed))
    return gpu if state is gpu.state else replace(gpu, state=state, state_since=changed)


def _locks(claims: Iterable[ClaimFact]) -> list[str]:
    by = [c.holder for c in claims if c.kind is ClaimKind.LOCK and c.exclusive]
    return [f"Locked by {', '.join(by)}."] if by else []


def _fault(
    gpu: GpuReading, old: GpuReading | None, state: GpuState, claims: Iterable[ClaimFact]
) -> list[str]:
    """A claim that no sweep has seen may have begun and booted since the last sweep."""
    was = old.state if old else None
    is_new = any(c.until is None and c.kind in JOB_KINDS and c.seen is None for c in claims)
    try:
        if is_new and state in _AFTER_BOOT:
            check_transition(was, _AFTER_BOOT[state])
            was = _AFTER_BOOT[state]
        check_transition(was, state)
    except IllegalGpuTransition as error:
        return [f"GPU {gpu.index}: {error}"]
    return []


def _work(
    gpu: GpuReading,
    processes: Sequence[ProcessReading],
    claims: Sequence[ClaimFact],
    now: datetime,
) -> GpuState:
    """A claim boots until its processes appear, and cools until its memory is released."""
    ours = [c for c in claims if c.until is None and c.kind in JOB_KINDS and c.phase != ASLEEP]
    asleep = {c.job_ref for c in claims if c.until is None and c.phase == ASLEEP}
    booting = {c.kind for c in ours if _boots(c, now)}
    working = [c for c in ours if not _boots(c, now)]
    if any(c.kind is ClaimKind.SCRIPT for c in working):
        return GpuState.SCRIPT_BUSY
    if booting:
        is_script = ClaimKind.SCRIPT in booting
        return GpuState.BOOTING_SCRIPT if is_script else GpuState.BOOTING_LLM
    if working:
        return GpuState.LLM_BUSY if _answers(gpu, processes, working) else GpuState.LLM_READY
    if any(c.until is not None and _must_cool(c, processes) for c in claims):
        return GpuState.COOLING
    locked = any(c.kind is ClaimKind.LOCK for c in claims)
    locked |= any(c.kind is ClaimKind.UNKNOWN and c.until is None for c in claims)
    others = [p for p in processes if p.job_ref not in asleep]
    # Memory that a sleeping model keeps is claimed; it does not make the GPU busy.
    is_held = _is_held(gpu) and not asleep
    return GpuState.EXTERNAL if others or locked or is_held else GpuState.IDLE


def _boots(claim: ClaimFact, now: datetime) -> bool:
    if claim.phase:
        return claim.phase == "booting"
    return claim.seen is None and not _lasted(claim, now)


def _lasted(claim: ClaimFact, until: datetime) -> bool:
    return claim.since is not None and until - claim.since > BOOTS_AT_MOST


def _must_cool(claim: ClaimFact, processes: Iterable[ProcessReading]) -> bool:
    """A claim whose processes were never seen cools only if one of them is present now."""
    if claim.seen is not None or (claim.until is not None and _lasted(claim, claim.until)):
        return True
    return any(p.job_ref == claim.job_ref for p in processes)


def _answers(
    gpu: GpuReading, processes: Iterable[ProcessReading], models: Sequence[ClaimFact]
) -> bool:
    """As its service says; else by the use of its processes, or of the whole GPU."""
    phases = {c.phase for c in models if c.phase}
    if phases:
        return "busy" in phases
    refs = {c.job_ref for c in models}
    shares = [p.sm_pct for p in processes if p.job_ref in refs]
    measured = [share for share in shares if share is not None]
    return max(measured, default=gpu.utilization_pct or 0) >= LLM_BUSY_PCT


def _is_held(gpu: GpuReading) -> bool:
    """Whether memory is in use although no process is listed (orphaned or hidden)."""
    return (gpu.memory_used_bytes or 0) >= HELD_BYTES


# Memory that outlives its process: release by ended jobs, and memory that no listed process holds.
#
# An ended job has released its memory when its processes are gone; totals are not used.


# Claims on a GPU that has disappeared are closed after this time.
FORGET = timedelta(hours=1)
# A GPU that still holds memory of an ended job after this time is quarantined.
RELEASE_WAIT = timedelta(seconds=5)


class Cooling(Struct, frozen=True, kw_only=True):
    """The result of one sweep.

    Claims whose processes appeared, claims whose memory is free, GPUs to quarantine, and GPUs whose
    quarantine is over.
    """

    started: tuple[int, ...] = ()
    freed: tuple[int, ...] = ()
    stuck: tuple[ClosureFact, ...] = ()
    recovered: tuple[str, ...] = ()


def keep_jobs(
    processes: Sequence[ProcessReading],
    before: Iterable[ProcessReading],
    claims: Iterable[ClaimFact],
) -> tuple[ProcessReading, ...]:
    """The processes; those of ended jobs keep their job, also when they are dead.

    The driver may list a dead pid as long as its memory is held; /proc has no entry for it then.
    """
    ended = {(c.gpu_uuid, c.job_ref) for c in claims if c.until is not None}
    if not ended:
        return tuple(processes)
    were = {(p.gpu_uuid, p.pid): p for p in before if (p.gpu_uuid, p.job_ref) in ended}
    return tuple(_kept(process, were.get((process.gpu_uuid, process.pid))) for process in processes)


def judge(
    processes: Iterable[ProcessReading],
    gpus: Sequence[GpuReading],
    claims: Sequence[ClaimFact],
    closures: Sequence[ClosureFact],
    now: datetime,
) -> Cooling:
    """Judge a sweep with a fresh process list. A lost GPU changes nothing."""
    on: dict[tuple[str, str], list[ProcessReading]] = {}
    for process in processes:
        if process.job_ref is not None:
            on.setdefault((process.gpu_uuid, process.job_ref), []).append(process)
    uuids = {gpu.uuid for gpu in gpus}
    well = {gpu.uuid for gpu in gpus if gpu.health is Health.OK}
    ended = [c for c in claims if c.until is not None]
    over = [c for c in ended if _is_over(c, on, uuids, well, now)]
    held = [c for c in ended if (c.gpu_uuid, c.job_ref) in on and c.gpu_uuid in well]
    late = [c for c in held if c.until is not None and now - c.until > RELEASE_WAIT]
    closed = {c.gpu_uuid for c in closures if c.kind is ClosureKind.QUARANTINED}
    return Cooling(
        started=_rows(c for c in claims if c.seen is None and (c.gpu_uuid, c.job_ref) in on),
        freed=_rows(over),
        stuck=tuple(_quarantine(late, on, closed, now).values()),
        recovered=tuple(sorted((closed & well) - {c.gpu_uuid for c in held})),
    )


def _is_over(
    claim: ClaimFact,
    on: Mapping[tuple[str, str], list[ProcessReading]],
    uuids: Collection[str],
    well: Collection[str],
    now: datetime,
) -> bool:
    if claim.gpu_uuid in well:
        return (claim.gpu_uuid, claim.job_ref) not in on
    return claim.gpu_uuid not in uuids and claim.until is not None and now - claim.until > FORGET


def _kept(process: ProcessReading, was: ProcessReading | None) -> ProcessReading:
    """Keep the owner and job of a pid unless another process has the pid now."""
    if was is None or process.job_ref is not None:
        return process
    ticks = (process.start_ticks, was.start_ticks)
    if None not in ticks and ticks[0] != ticks[1]:
        return process
    return replace(
        was,
        memory_bytes=process.memory_bytes,
        sm_pct=process.sm_pct,
        kinds=process.kinds,
        source=process.source,
        instance=process.instance,
    )


def _quarantine(
    late: Iterable[ClaimFact],
    on: Mapping[tuple[str, str], list[ProcessReading]],
    closed: Collection[str],
    now: datetime,
) -> dict[str, ClosureFact]:
    """One closure for each GPU that is not in quarantine yet, for the job that ended first."""
    closures_by_gpu: dict[str, ClosureFact] = {}
    for claim in late:
        if claim.gpu_uuid in closed or claim.gpu_uuid in closures_by_gpu:
            continue
        left = on[claim.gpu_uuid, claim.job_ref]
        sizes = [p.memory_bytes for p in left if p.memory_bytes is not None]
        closures_by_gpu[claim.gpu_uuid] = ClosureFact(
            gpu_uuid=claim.gpu_uuid,
            kind=ClosureKind.QUARANTINED,
            since=now,
            job_ref=claim.job_ref,
            pid=max(left, key=lambda p: p.memory_bytes or 0).pid,
            memory_bytes=sum(sizes) if sizes else None,
        )
    return closures_by_gpu


def _rows(claims: Iterable[ClaimFact]) -> tuple[int, ...]:
    return tuple(claim.row for claim in claims if claim.row is not None)


# Contexts of the driver itself take less than this.
LEAST_BYTES = 1024**3
LASTING = timedelta(seconds=60)


def with_orphans(
    gpus: Sequence[GpuReading],
    processes: Iterable[ProcessReading],
    before: Mapping[str, GpuReading],
    now: datetime,
    is_fresh: bool,
) -> tuple[GpuReading, ...]:
    """The readings with orphaned memory and its begin; unchanged between process lists."""
    held: dict[str, list[int | None]] = defaultdict(list)
    for process in processes:
        held[process.gpu_uuid].append(process.memory_bytes)
    readings: list[GpuReading] = []
    for gpu in gpus:
        old = before.get(gpu.uuid)
        if not is_fresh and old is not None:
            size, since = old.orphaned_bytes, old.orphaned_since
        else:
            size = orphaned(gpu, held[gpu.uuid])
            since = old.orphaned_since if old else None
            since = (since or now) if size else None
        readings.append(replace(gpu, orphaned_bytes=size, orphaned_since=since))
    return tuple(readings)


def orphaned(gpu: GpuReading, held: Sequence[int | None]) -> int | None:
    """Used memory minus the sum of the processes, if it is much. None: unknown.

    Used bytes exclude reserved ones. If the driver does not separate these, or hides the memory of
    a process, the result is unknown.
    """
    if gpu.health is not Health.OK or gpu.memory_used_bytes is None:
        return None
    if gpu.memory_reserved_bytes is None or None in held:
        return None
    rest = gpu.memory_used_bytes - sum(size for size in held if size is not None)
    return rest if rest >= LEAST_BYTES else 0


def became_lasting(gpu: GpuReading, old_at: datetime, now: datetime) -> bool:
    """Whether memory has been orphaned for long enough now, but had not been at `old_at`."""
    since = gpu.orphaned_since
    return since is not None and now - since >= LASTING > old_at - since
