"""Controller parts: claims of programs that lock GPUs, and GPUs whose lock file is unusable."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from monitor.facts.claims import ClaimFact, ClaimKind
from monitor.facts.gpu_states import ClosureFact, ClosureKind
from monitor.facts.readings import Snapshot
from monitor.gpus import rows as availability
from monitor.gpus.snapshot import rows as snapshots
from monitor.journal.rows import events
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.wakeups import wake
from scheduler.execution.steps.gpu_closures import holders_of
from scheduler.runner.confine import locks
from scheduler.runner.confine.locks import RUNNER, LockHolder

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
