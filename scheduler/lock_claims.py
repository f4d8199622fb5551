"""Part of the controller: who holds a GPU's lock file from outside has a claim on it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from monitor import store
from monitor.claims import ClaimFact, ClaimKind
from monitor.readings import Snapshot
from scheduler import locked
from scheduler.runner.lock_holders import RUNNER, Holder

Key = tuple[str, str]


class LockClaims:
    """The part that keeps these claims as the locks are. What is there is in the rows."""

    name = "locks"

    def __init__(self, host: str, folder: Path | None) -> None:
        self._host = host
        self._folder = folder

    def judge(self, snapshot: Snapshot | None, now: datetime) -> dict[str, list[Key]] | None:
        """Which claims came, and which went; None = the GPUs are not known now."""
        if snapshot is None:
            return None
        held = self._held(snapshot)
        known = {(c.gpu_uuid, c.job_ref): c for c in store.lock_claims(self._host)}
        for uuid, ref in held.keys() - known.keys():
            store.open_claim(_claim(uuid, ref, held[uuid, ref]), self._host, now)
        gone = known.keys() - held.keys()
        store.end_lock_claims([c.row for key, c in known.items() if key in gone and c.row], now)
        return {"came": sorted(held.keys() - known.keys()), "went": sorted(gone)}

    def _held(self, snapshot: Snapshot) -> dict[Key, Holder]:
        """By GPU and reference; our own jobs' runners have claims already."""
        ours = {claim.gpu_uuid for claim in store.open_claims(self._host)}
        return {
            (uuid, f"lock-{holder.pid}-{holder.start_ticks or 0}"): holder
            for uuid, holders in locked.holders_of(snapshot, self._folder).items()
            for holder in holders
            if not (holder.program == RUNNER and uuid in ours)
        }


def _claim(uuid: str, ref: str, holder: Holder) -> ClaimFact:
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
