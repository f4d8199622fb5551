"""GPUs that take no new jobs, or only some: closures, lock files, holds, and reserved GPUs.

Controller parts: claims of programs that lock GPUs, and GPUs whose lock file is unusable.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from django.conf import settings
from django.db.models import QuerySet
from msgspec.structs import replace

from monitor.facts.accounts import ClaimFact, ClaimKind
from monitor.facts.gpus import ClosureFact, ClosureKind
from monitor.facts.readings import ComputeMode, GpuReading, ProcessReading, Snapshot
from monitor.gpus.rows import closures as availability
from monitor.gpus.rows import snapshot as snapshots
from monitor.journal.rows import events
from monitor.runtime.rows.database import compiled_once
from monitor.runtime.rows.item_isolation import ItemIsolation, is_of_step
from monitor.runtime.rows.wakeups import wake
from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details
from scheduler.facts.jobs import JobState
from scheduler.facts.language_models import Role
from scheduler.facts.scripts import RESERVING
from scheduler.models import ExclusiveRun, GpuHold, LockRefusal, ModelService
from scheduler.queue.planner import capacity
from scheduler.queue.planner.capacity import lets_one_in
from scheduler.runner.confine import locks
from scheduler.runner.confine.locks import RUNNER, LockHolder

_RESERVING = tuple(step.value for step in RESERVING)
# Back-off for locks that are visible only when a runner tries them, as those of other containers.
FIRST_BACKOFF, MAX_BACKOFF = timedelta(seconds=5), timedelta(minutes=5)


Closed = Mapping[str, tuple[Blocker, ...]]


class Source(Protocol):
    """A source of closures: blockers of closed GPUs of a host, by UUID."""

    __name__: str

    def __call__(self, host: str, snapshot: Snapshot, now: datetime, /) -> Closed: ...


def gpu_closures(
    host: str, snapshot: Snapshot, now: datetime, isolation: ItemIsolation | None = None
) -> dict[str, tuple[Blocker, ...]]:
    """Blockers of closed GPUs, by UUID.

    If a source fails for a GPU, that GPU is closed; the other GPUs are not affected.
    """
    isolation = isolation or ItemIsolation(host, "closures", reports=False)
    closures: dict[str, tuple[Blocker, ...]] = {}
    for source in SOURCES:
        for uuid, blockers in _closed_by(source, host, snapshot, now, isolation).items():
            closures[uuid] = (*closures.get(uuid, ()), *blockers)
    return closures


def _closed_by(
    source: Source, host: str, snapshot: Snapshot, now: datetime, isolation: ItemIsolation
) -> Closed:
    """Closures from one source. If it fails for all GPUs together, it is asked for each GPU."""
    try:
        return source(host, snapshot, now)
    except Exception as error:
        if is_of_step(error):
            raise
        gpus = isolation.each(
            snapshot.gpus,
            lambda gpu: f"{source.__name__} of GPU {gpu.index}",
            lambda gpu: source(host, replace(snapshot, gpus=(gpu,)), now),
            now,
        )
    uuids = {gpu.uuid for gpu, _ in gpus}
    unknown = {gpu.uuid: (_unknown(gpu),) for gpu in snapshot.gpus if gpu.uuid not in uuids}
    return unknown | {uuid: why for _, closed in gpus for uuid, why in closed.items()}


def _unknown(gpu: GpuReading) -> Blocker:
    return Blocker(code=BlockerCode.GPU_UNCLEAR, tier=Tier.MACHINE, gpu=gpu.index)


def paused_or_quarantined(host: str, snapshot: Snapshot, _now: datetime) -> Closed:
    """GPUs that an operator paused, and those in quarantine."""
    indices = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
    closures: dict[str, tuple[Blocker, ...]] = {}
    for fact in availability.on(host):
        if fact.gpu_uuid in indices:
            blocker = _blocker(fact, indices[fact.gpu_uuid])
            closures[fact.gpu_uuid] = (*closures.get(fact.gpu_uuid, ()), blocker)
    return closures


def _blocker(fact: ClosureFact, gpu: int) -> Blocker:
    if fact.kind is ClosureKind.PAUSED:
        return Blocker(
            code=BlockerCode.GPU_PAUSED,
            tier=Tier.MACHINE,
            gpu=gpu,
            holder=fact.by,
            details=details(reason=fact.reason),
        )
    if fact.kind is ClosureKind.LOCK_FILE:
        return Blocker(
            code=BlockerCode.GPU_LOCKED,
            tier=Tier.MACHINE,
            gpu=gpu,
            details=details(refused=fact.reason.rstrip(".")),
        )
    if fact.kind is ClosureKind.UNKNOWN:
        return Blocker(code=BlockerCode.GPU_UNCLEAR, tier=Tier.MACHINE, gpu=gpu)
    return Blocker(
        code=BlockerCode.GPU_QUARANTINED,
        tier=Tier.MACHINE,
        gpu=gpu,
        holder=f"job {fact.job_ref}, pid {fact.pid}",
        details=details(job_ref=fact.job_ref, memory_bytes=fact.memory_bytes),
    )


def closed_by_compute_mode(_host: str, snapshot: Snapshot, _now: datetime) -> Closed:
    """GPUs whose compute mode forbids computing, or allows only a foreign process."""
    closures: dict[str, tuple[Blocker, ...]] = {}
    for gpu in snapshot.gpus:
        if gpu.compute_mode is ComputeMode.PROHIBITED:
            closures[gpu.uuid] = (_prohibited(gpu.index),)
        elif lets_one_in(gpu, snapshot):
            others = [p for p in snapshot.on(gpu.uuid) if p.job_ref is None and "C" in p.kinds]
            if others:
                closures[gpu.uuid] = (_taken_by_one(gpu.index, others[0]),)
    return closures


def _prohibited(index: int) -> Blocker:
    return Blocker(code=BlockerCode.COMPUTE_PROHIBITED, tier=Tier.MACHINE, gpu=index)


def _taken_by_one(index: int, process: ProcessReading) -> Blocker:
    holder = f"{process.user or 'unknown user'}/{process.program or f'pid {process.pid}'}"
    return Blocker(code=BlockerCode.COMPUTE_EXCLUSIVE, tier=Tier.MACHINE, gpu=index, holder=holder)


def closed_by_owners(_host: str, snapshot: Snapshot, _now: datetime) -> Closed:
    """GPUs used by a user outside the queue."""
    return capacity.owner_closures(snapshot)


def record_refusal(host: str, gpu_uuids: Collection[str], text: str, now: datetime) -> None:
    """Store that a runner could not lock these GPUs. The caller opens the transaction."""
    stored = {row.gpu_uuid: row for row in LockRefusal.objects.filter(gpu_uuid__in=gpu_uuids)}
    for uuid in gpu_uuids:
        last = stored.get(uuid)
        wait = FIRST_BACKOFF
        if last is not None and _is_next_of_a_row(last, now):
            wait = min(MAX_BACKOFF, 2 * timedelta(seconds=last.wait_s))
        values = {"host": host, "text": text, "refused_at": now, "wait_s": wait.total_seconds()}
        LockRefusal.objects.update_or_create(gpu_uuid=uuid, defaults=values)


def _is_next_of_a_row(last: LockRefusal, now: datetime) -> bool:
    longest = 2 * timedelta(seconds=last.wait_s) + FIRST_BACKOFF
    return timedelta() <= now - last.refused_at < longest


@compiled_once
def _refusals(host: str) -> QuerySet[LockRefusal]:
    return LockRefusal.objects.filter(host=host)


def locked_gpus(host: str, snapshot: Snapshot, now: datetime) -> Mapping[str, tuple[Blocker, ...]]:
    """Blockers of the GPUs on which no job may start because of a lock, by UUID."""
    blockers: dict[str, tuple[Blocker, ...]] = {}
    indices = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
    held = holders_of(snapshot, settings.LOCK_FOLDER)
    runs = any(holder.program == RUNNER for holders in held.values() for holder in holders)
    ours = _ours(host) if runs else set()
    for uuid, holders in held.items():
        others = [h for h in holders if h.program != RUNNER and h.alone]
        # Jobs of another gpucoord exclude ours, even if both would share the GPU.
        others += [h for h in holders if h.program == RUNNER and uuid not in ours]
        if others:
            blockers[uuid] = (_locked_blocker(indices[uuid], others),)
    for refusal in _refusals(host):
        uuid = refusal.gpu_uuid
        holds = refusal.refused_at <= now < refusal.until_at
        is_open = uuid not in blockers and not _is_mended(refusal, indices.get(uuid))
        if holds and uuid in indices and is_open:
            blockers[uuid] = (_refused_blocker(indices[uuid], refusal),)
    return blockers


def _is_mended(refusal: LockRefusal, index: int | None) -> bool:
    """Whether the lock file was unusable at the refusal and is usable now."""
    folder = settings.LOCK_FOLDER
    was_unusable = refusal.text.endswith(locks.REMEDY_HINT) and folder is not None
    return was_unusable and index is not None and not locks.gpu_lock_fault(folder, index)


def holders_of(snapshot: Snapshot, folder: Path | None) -> dict[str, tuple[LockHolder, ...]]:
    """Holders of each locked GPU's lock file, and exclusive holders of the host's."""
    if folder is None:
        return {}
    files = {gpu.uuid: locks.gpu_lock_file(folder, gpu.index) for gpu in snapshot.gpus}
    host = folder / locks.HOST_FILE
    holders_by_file = locks.holders([host, *files.values()])
    whole = tuple(holder for holder in holders_by_file[host] if holder.alone)
    by_gpu = {uuid: (*whole, *holders_by_file[file]) for uuid, file in files.items()}
    return {uuid: holders for uuid, holders in by_gpu.items() if holders}


def _ours(host: str) -> set[str]:
    """GPUs of our jobs: locks that runners hold there are our own."""
    return {claim.gpu_uuid for claim in snapshots.open_claims(host)}


def _refused_blocker(gpu: int, refusal: LockRefusal) -> Blocker:
    """The lock is retried automatically; its holder may be invisible from here."""
    return Blocker(
        code=BlockerCode.GPU_LOCKED,
        tier=Tier.MACHINE,
        gpu=gpu,
        until=refusal.until_at,
        details=details(refused=refusal.text),
    )


def _locked_blocker(gpu: int, holders: list[LockHolder]) -> Blocker:
    return Blocker(
        code=BlockerCode.GPU_LOCKED, tier=Tier.MACHINE, gpu=gpu, holder=locks.holder_names(holders)
    )


# In the order of display.
SOURCES: tuple[Source, ...] = (
    closed_by_owners,
    paused_or_quarantined,
    closed_by_compute_mode,
    locked_gpus,
)


def gpu_holds(host: str, now: datetime) -> dict[str, int]:
    """{GPU UUID: job} of the GPUs that were freed for a job which still waits."""
    return {hold.gpu_uuid: hold.job_id for hold in _holds(host) if hold.until > now}


@compiled_once
def _holds(host: str) -> QuerySet[GpuHold]:
    return GpuHold.objects.filter(host=host, job__state=JobState.QUEUED.value, job__held="")


def gpus_of_batches(host: str) -> dict[str, int]:
    """{GPU UUID: batch} of the GPUs that batches have for themselves."""
    return {uuid: batch for batch, uuids in _reserved(host) for uuid in uuids}


@compiled_once
def _reserved(host: str) -> QuerySet[ExclusiveRun, tuple[int, list[str]]]:
    rows = ExclusiveRun.objects.filter(host=host, step__in=_RESERVING)
    return rows.values_list("batch_id", "gpu_uuids")


def gpus_of_models() -> dict[str, str]:
    """The name of the brain model for which a GPU is reserved, by UUID."""
    brains = ModelService.objects.filter(enabled=True).exclude(role=Role.WORKER_OR_SCRIPT.value)
    rows = brains.exclude(on_gpus=[]).order_by("name").values_list("name", "on_gpus")
    names: dict[str, list[str]] = {}
    for name, uuids in rows:
        for uuid in uuids:
            names.setdefault(uuid, []).append(name)
    return {uuid: ", ".join(each) for uuid, each in names.items()}


Key = tuple[str, str]


class LockClaims:
    """Controller part: keeps a claim for each program that holds a GPU's lock file."""

    name = "locks"

    def __init__(self, host: str, folder: Path | None) -> None:
        self._host = host
        self._isolation = ItemIsolation(host, self.name)
        self._folder = folder

    def judge(self, snapshot: Snapshot | None, now: datetime) -> dict[str, list[Key]] | None:
        """Open and close claims; returns their keys. None = the GPUs are unknown."""
        if snapshot is None:
            return None
        holders = self._held(snapshot)
        claims = {(c.gpu_uuid, c.job_ref): c for c in snapshots.lock_claims(self._host)}
        came = self._isolation.each(
            sorted(holders.keys() - claims.keys()),
            " of ".join,
            lambda key: snapshots.open_claim(_claim(*key, holders[key]), self._host, now),
            now,
        )
        ended = claims.keys() - holders.keys()
        snapshots.end_lock_claims(
            [c.row for key, c in claims.items() if key in ended and c.row], now
        )
        return {"came": [key for key, _ in came], "went": sorted(ended)}

    def _held(self, snapshot: Snapshot) -> dict[Key, LockHolder]:
        """By GPU and reference, without the runners of our own jobs, which have claims already."""
        ours = {claim.gpu_uuid for claim in snapshots.open_claims(self._host)}
        return {
            (uuid, f"lock-{holder.pid}-{holder.start_ticks or 0}"): holder
            for uuid, holders in holders_of(snapshot, self._folder).items()
            for holder in holders
            if not (holder.program == RUNNER and uuid in ours)
        }


def _claim(uuid: str, ref: str, holder: LockHolder) -> ClaimFact:
    return ClaimFact(
        job_ref=ref,
        gpu_uuid=uuid,
        owner=holder.user or "",
        kind=ClaimKind.LOCK,
        exclusive=holder.alone,
        leader_pid=holder.pid,
        leader_start_ticks=holder.start_ticks,
        holder=holder.name,
    )


class LockFiles:
    """Controller part: closes GPUs whose lock file cannot be used. Its state is in rows."""

    name = "lock files"

    def __init__(self, host: str, folder: Path | None) -> None:
        self._host = host
        self._folder = folder
        self._isolation = ItemIsolation(host, self.name)

    def judge(self, snapshot: Snapshot | None, now: datetime) -> dict[str, str] | None:
        """Close and reopen GPUs; returns the faults by GPU. None = the GPUs are unknown."""
        if snapshot is None or self._folder is None:
            return None
        indices = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
        faults = {
            uuid: fault
            for uuid, index in indices.items()
            if (fault := locks.gpu_lock_fault(self._folder, index))
        }
        closed = {
            fact.gpu_uuid: fact.reason
            for fact in availability.on(self._host)
            if fact.kind is ClosureKind.LOCK_FILE
        }
        changed = sorted(
            uuid for uuid in faults.keys() | closed.keys() if faults.get(uuid) != closed.get(uuid)
        )
        self._isolation.each(
            changed, str, lambda uuid: self._change(uuid, indices, faults.get(uuid, ""), now), now
        )
        return faults

    def _change(self, uuid: str, indices: dict[str, int], fault: str, now: datetime) -> None:
        gpu = f"GPU {indices[uuid]}" if uuid in indices else "A GPU that is no longer there"
        availability.reopen([uuid], ClosureKind.LOCK_FILE, now)
        if fault:
            fact = ClosureFact(gpu_uuid=uuid, kind=ClosureKind.LOCK_FILE, since=now, reason=fault)
            availability.close(fact, self._host)
            text, severity = f"{gpu} takes no jobs: {fault}", "warning"
        else:
            text, severity = f"{gpu} takes jobs again.", "info"
        events.add(
            "GPU_LOCK_UNUSABLE" if fault else "GPU_LOCK_USABLE",
            text,
            now=now,
            severity=severity,
            host=self._host,
            gpu_uuid=uuid,
        )
        wake("scheduler")
        wake("live")
