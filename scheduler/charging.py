"""Step: what people take of the GPUs is charged to them, every few seconds.

Jobs by what they kept, which their claims tell to the second, also of a time when nobody looked.
Other processes by what the newest snapshot shows; of a longer gap only its last seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from monitor import policies
from monitor.claims import ClaimKind
from monitor.readings import Snapshot
from monitor.store import open_claims
from scheduler import share_rows
from scheduler.models import UsedShare
from scheduler.people import Capacity
from scheduler.policy import budgets, charging, shares
from scheduler.policy.charging import Charge, Hold
from scheduler.policy.quotas import QuotaPolicy

HOUR_S = 3600.0
# A clock that was set back further than this begins anew.
SET_BACK = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look found, and the time that it is about."""

    snapshot: Snapshot
    capacity: Capacity
    charges: Mapping[str, Charge]
    since: datetime
    now: datetime


class Charging:
    """A part of the controller; all that it needs to go on is in rows."""

    name = "charging"

    def __init__(self, host: str, zone: str) -> None:
        self._host = host
        self._zone = zone

    def judge(self, snapshot: Snapshot | None, now: datetime) -> object:
        """Returns what each person takes now; None = there is nothing to see."""
        if snapshot is None:
            return None
        capacity = charging.capacity(snapshot)
        since = share_rows.charged_until(self._host)
        if since is not None and now <= since and since - now < SET_BACK:
            return None
        claims = [c for c in open_claims(self._host) if c.kind is not ClaimKind.LOCK]
        charges = charging.charges(snapshot, claims)
        start = now if since is None or since > now else since
        self._charge(_Look(snapshot, capacity, charges, start, now))
        share_rows.set_charged(self._host, now, capacity)
        return charges

    def _charge(self, look: _Look) -> None:
        policy = policies.current(QuotaPolicy)
        seen_from = max(look.since, look.now - timedelta(seconds=policy.longest_gap_s))
        sizes = {gpu.uuid: gpu.memory_total_bytes for gpu in look.snapshot.gpus}
        holds = share_rows.holds(self._host, look.since, sizes)
        self._debit(look, holds, seen_from)
        self._use(look, holds, seen_from, policy)

    def _debit(self, look: _Look, holds: Sequence[Hold], seen_from: datetime) -> None:
        """Into the ledger, each second to its day."""
        rates = {owner: c.outside for owner, c in look.charges.items() if c.outside}
        for day, start, end in budgets.days(look.since, look.now, self._zone):
            seconds = max(0.0, (end - max(start, seen_from)).total_seconds())
            outside = {owner: rate * seconds for owner, rate in rates.items() if seconds}
            jobs = charging.held_seconds(holds, start, end)
            share_rows.debit(self._host, day.from_at, jobs, outside)

    def _use(
        self, look: _Look, holds: Sequence[Hold], seen_from: datetime, policy: QuotaPolicy
    ) -> None:
        """Into what fades."""
        rows = share_rows.used(self._host)
        half_life_s = policy.half_life_hours * HOUR_S
        gpus = len(look.capacity.gpu_uuids)
        usage = {owner: row.usage for owner, row in rows.items()}
        gap_s = (seen_from - look.since).total_seconds()
        if gap_s > 0:
            took = charging.held_seconds(holds, look.since, seen_from)
            rates = {owner: _part(seconds / gap_s, gpus) for owner, seconds in took.items()}
            usage = shares.advance(usage, rates, gap_s, half_life_s)
        seconds = (look.now - seen_from).total_seconds()
        rates = {owner: _part(charge.gpus, gpus) for owner, charge in look.charges.items()}
        usage = shares.advance(usage, rates, seconds, half_life_s)
        for hold in holds:
            if look.since < hold.from_at <= look.now:
                part = _part(hold.part, gpus)
                fee = shares.entry(part, policy.entry_hours * HOUR_S, half_life_s)
                usage[hold.owner] = usage.get(hold.owner, 0.0) + fee
        self._write(rows, usage, look.charges, gap_s + seconds, seconds, half_life_s)

    def _write(
        self,
        rows: Mapping[str, UsedShare],
        usage: Mapping[str, float],
        charges: Mapping[str, Charge],
        elapsed_s: float,
        seen_s: float,
        half_life_s: float,
    ) -> None:
        b = shares.kept(elapsed_s, half_life_s)
        nobody = Charge()
        written: list[UsedShare] = []
        forgotten: list[UsedShare] = []
        for owner, used in usage.items():
            row = rows.get(owner) or UsedShare(host=self._host, owner=owner)
            charge = charges.get(owner, nobody)
            row.usage, row.charge, row.outside = used, charge.gpus, charge.outside
            row.seen_s = b * row.seen_s + seen_s * charge.seen
            row.known_s = b * row.known_s + seen_s * charge.known
            forget = used < shares.NOTHING and not charge.seen
            (forgotten if forget else written).append(row)
        share_rows.set_used(written)
        share_rows.forget(forgotten)


def _part(gpus: float, of: int) -> float:
    return min(1.0, gpus / of) if of else 0.0
