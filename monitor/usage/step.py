"""Accounting of GPU usage by process: updated at each sweep, stored every few seconds.

Usage not stored yet is saved in the row of the newest snapshot, in the same transaction. So a
sampler that dies loses nothing and counts nothing twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime

from monitor.facts.readings import GpuMark, GpuReading, GpuSweep, ProcessReading
from monitor.usage.policy import accounting
from monitor.usage.policy.accounting import ProcessUses, UsePolicy
from monitor.usage.rows import processes as process_rows

WRITE_EVERY_S = 5.0
logger = logging.getLogger(__name__)


class Ledger:
    """The usage account of one host."""

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
        """Continue where the previous sampler stopped; `carried` is the state of its last tick."""
        try:
            restored = accounting.loads(carried, self._probe, self._policy)
        except (ValueError, KeyError, TypeError):
            text = "Cannot restore usage accounting state from the previous sampler"
            logger.warning(text, exc_info=True, extra={"kind": "ACCOUNT_UNREADABLE"})
            restored = None
        if restored is None:
            self._is_lost = True
        else:
            self._uses, self._marks = restored

    def take(
        self,
        now: datetime,
        sweep: GpuSweep,
        gpus: tuple[GpuReading, ...],
        processes: Iterable[ProcessReading],
    ) -> None:
        """Add one sweep that read the processes."""
        busy = {(p.gpu_uuid, p.pid): p.busy_s for p in sweep.processes if p.busy_s is not None}
        # A sweep without a GPU moves no cursor.
        self._marks = sweep.marks or self._marks
        self._uses.take(now, gpus, list(processes), busy, sweep.ended)

    def note(self, now: datetime, gpus: tuple[GpuReading, ...]) -> None:
        """A sweep that read the GPUs without the processes."""
        self._uses.note(now, gpus)

    def carry(self, is_written: bool = False) -> str:
        """The state for the next sampler, without the records that are stored now."""
        return accounting.dumps(self._probe, self._uses, self._marks, is_written)

    def is_due(self, now: datetime) -> bool:
        last = self._written_at
        return last is None or not 0 <= (now - last).total_seconds() < WRITE_EVERY_S

    def write(self) -> str:
        """Store changed rows and return the state to carry, for the same transaction."""
        if self._is_lost:
            process_rows.close_all(self._host)
        last = self._written_at
        alive = [
            u
            for u in self._uses.open.values()
            if last is None or u.last_seen_at > last or u.ended_at is not None
        ]
        uses = {id(use): use for use in (*alive, *self._uses.ended)}
        for minute in self._uses.minutes:
            uses.setdefault(id(minute.use), minute.use)
        if uses:
            simulated = self._probe == "simulated"
            minutes = self._uses.minutes
            process_rows.write(self._host, list(uses.values()), minutes, simulated=simulated)
        return self.carry(is_written=True)

    def written(self, now: datetime) -> None:
        """The transaction with the rows is committed."""
        self._is_lost = False
        self._written_at = now
        self._uses.taken()
