"""The sampler's account of who used what: added up each sweep, written down every few seconds.

What is not written yet is carried in the row of the newest snapshot: it is there or not together
with that snapshot, so no death of a sampler loses or doubles any of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime

from monitor import use_rows
from monitor.policy import use_carry
from monitor.policy.process_use import ProcessUses, UsePolicy
from monitor.readings import GpuReading, GpuSweep, ProcessReading
from monitor.use_facts import GpuMark

WRITE_EVERY_S = 5.0
logger = logging.getLogger(__name__)


class Ledger:
    """One host's account."""

    def __init__(self, host: str, probe: str, policy: UsePolicy | None = None) -> None:
        self._host = host
        self._probe = probe
        self._policy = policy or UsePolicy()
        self._uses = ProcessUses(policy=self._policy)
        self._marks: dict[str, GpuMark] = {}
        self._is_lost = False
        self._written_at: datetime | None = None

    @property
    def swept_at(self) -> datetime | None:
        return self._uses.swept_at

    @property
    def marks(self) -> Mapping[str, GpuMark]:
        return self._marks

    def resume(self, carried: str) -> None:
        """Go on where the sampler before stopped; `carried` is what its last tick left."""
        try:
            found = use_carry.loads(carried, self._probe, self._policy)
        except (ValueError, KeyError, TypeError):
            text = "The account of the sampler before can't be read"
            logger.warning(text, exc_info=True, extra={"kind": "ACCOUNT_UNREADABLE"})
            found = None
        if found is None:
            self._is_lost = True
        else:
            self._uses, self._marks = found

    def take(
        self,
        now: datetime,
        sweep: GpuSweep,
        gpus: tuple[GpuReading, ...],
        processes: Iterable[ProcessReading],
    ) -> None:
        """Add up one sweep that looked at the processes."""
        busy = {(p.gpu_uuid, p.pid): p.busy_s for p in sweep.processes if p.busy_s is not None}
        # A sweep that saw no GPU moved no cursor.
        self._marks = sweep.marks or self._marks
        self._uses.take(now, gpus, list(processes), busy, sweep.ended)

    def carry(self, is_written: bool = False) -> str:
        """What the next sampler needs; without what is being written down."""
        return use_carry.dumps(self._probe, self._uses, self._marks, is_written)

    def is_due(self, now: datetime) -> bool:
        last = self._written_at
        return last is None or not 0 <= (now - last).total_seconds() < WRITE_EVERY_S

    def write(self) -> str:
        """Write what has changed, and return what is carried then: for the same transaction."""
        if self._is_lost:
            use_rows.close_all(self._host)
        last = self._written_at
        alive = [u for u in self._uses.open.values() if last is None or u.last_seen_at > last]
        uses = {id(use): use for use in (*alive, *self._uses.ended)}
        for minute in self._uses.minutes:
            uses.setdefault(id(minute.use), minute.use)
        if uses:
            simulated = self._probe == "simulated"
            minutes = self._uses.minutes
            use_rows.write(self._host, list(uses.values()), minutes, simulated=simulated)
        return self.carry(is_written=True)

    def written(self, now: datetime) -> None:
        """The transaction with the rows is done."""
        self._is_lost = False
        self._written_at = now
        self._uses.taken()
