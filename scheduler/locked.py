"""Rows and edges -> blockers: GPUs whose lock files somebody outside this gpucoord holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings

from monitor import store
from monitor.readings import Snapshot
from scheduler.blockers import Blocker, Tier
from scheduler.runner import lock_holders, locks
from scheduler.runner.lock_holders import RUNNER, Holder

# A lock that only shows when it is tried, as one held in another container, is tried again after
# this, then after twice as long, and so on.
TRY_AGAIN, TRY_LATEST = timedelta(seconds=5), timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A GPU's lock that could not be taken."""

    text: str
    at: datetime
    wait: timedelta

    def holds(self, now: datetime) -> bool:
        return timedelta() <= now - self.at < self.wait

    def counts(self, now: datetime) -> bool:
        """Whether another one would be the next of a row."""
        return timedelta() <= now - self.at < 2 * self.wait + TRY_AGAIN


_refused: dict[str, Refusal] = {}


def remember(gpu_uuids: Iterable[str], text: str, now: datetime) -> None:
    """Somebody else held a lock when a job was to start there."""
    for uuid in gpu_uuids:
        last = _refused.get(uuid)
        again = last is not None and last.counts(now)
        wait = min(TRY_LATEST, 2 * last.wait) if last is not None and again else TRY_AGAIN
        _refused[uuid] = Refusal(text, now, wait)


def closed(host: str, snapshot: Snapshot, now: datetime) -> Mapping[str, tuple[Blocker, ...]]:
    """GPUs on which nothing may start because of a lock."""
    found: dict[str, tuple[Blocker, ...]] = {}
    indices = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
    held = holders_of(snapshot, settings.LOCK_FOLDER)
    runs = any(holder.program == RUNNER for holders in held.values() for holder in holders)
    ours = _ours(host) if runs else set()
    for uuid, holders in held.items():
        others = [h for h in holders if h.program != RUNNER and h.alone]
        # Another gpucoord's jobs keep ours off even where they would share.
        others += [h for h in holders if h.program == RUNNER and uuid not in ours]
        if others:
            found[uuid] = (_blocker(f"GPU {indices[uuid]}", others),)
    for uuid, refusal in list(_refused.items()):
        if not refusal.counts(now):
            del _refused[uuid]
        elif uuid in indices and uuid not in found and refusal.holds(now):
            found[uuid] = (_refused_blocker(f"GPU {indices[uuid]}", refusal),)
    return found


def holders_of(snapshot: Snapshot, folder: Path | None) -> dict[str, tuple[Holder, ...]]:
    """Who holds each GPU's lock file, or the host's alone; GPUs that nobody holds are left out."""
    if folder is None:
        return {}
    files = {gpu.uuid: locks.gpu_file(folder, gpu.index) for gpu in snapshot.gpus}
    host = folder / locks.HOST_FILE
    seen = lock_holders.holders([host, *files.values()])
    whole = tuple(holder for holder in seen[host] if holder.alone)
    found = {uuid: (*whole, *seen[file]) for uuid, file in files.items()}
    return {uuid: holders for uuid, holders in found.items() if holders}


def _ours(host: str) -> set[str]:
    """GPUs that our jobs have: what runners hold there are our own locks."""
    return {claim.gpu_uuid for claim in store.open_claims(host)}


def _refused_blocker(gpu: str, refusal: Refusal) -> Blocker:
    """It is tried again by itself; who holds it may not be seen from here."""
    text = f"{gpu} can't be used: {refusal.text}."
    until = refusal.at + refusal.wait
    return Blocker(code="GpuLocked", text=text, tier=Tier.MACHINE, available=gpu, until=until)


def _blocker(gpu: str, holders: list[Holder]) -> Blocker:
    who = locks.names(holders)
    return Blocker(
        code="GpuLocked",
        text=f"{gpu} is locked by {who}.",
        tier=Tier.MACHINE,
        available=gpu,
        holder=who,
    )
