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
from scheduler.policy import budgets, charging, holds, shares
from scheduler.policy.charging import Charge
from scheduler.policy.holds import Hold
from scheduler.policy.quotas import QuotaPolicy

HOUR_S = 3600.0
NOTHING = Charge()
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

    def rates(
        self, beside: Mapping[str, float], took_s: Mapping[str, float], seconds: float
    ) -> dict[str, float]:
        """By owner, as parts of the capacity: GPUs beside what was kept in so many seconds."""
        owners = beside.keys() | took_s.keys()
        return {
            o: self.part(beside.get(o, 0.0) + took_s.get(o, 0.0) / seconds) for o in sorted(owners)
        }

    def part(self, gpus: float) -> float:
        """Of the capacity."""
        of = len(self.capacity.gpu_uuids)
        return gpus / of if of else 0.0


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
        held = share_rows.holds(self._host, look.since, sizes)
        self._debit(look, held, seen_from)
        self._use(look, held, seen_from, policy)

    def _debit(self, look: _Look, held: Sequence[Hold], seen_from: datetime) -> None:
        """Into the ledger, each second to its day."""
        rates = {owner: c.outside for owner, c in look.charges.items() if c.outside}
        for day, start, end in budgets.days(look.since, look.now, self._zone):
            seconds = max(0.0, (end - max(start, seen_from)).total_seconds())
            outside = {owner: rate * seconds for owner, rate in rates.items() if seconds}
            jobs = holds.held_seconds(held, start, end)
            share_rows.debit(self._host, day.from_at, jobs, outside)

    def _use(
        self, look: _Look, held: Sequence[Hold], seen_from: datetime, policy: QuotaPolicy
    ) -> None:
        """Into what fades."""
        rows = share_rows.used(self._host)
        half_life_s, entry_s = policy.half_life_hours * HOUR_S, policy.entry_hours * HOUR_S
        usage = {owner: row.usage for owner, row in rows.items()}
        beside = {owner: c.outside + c.excess for owner, c in look.charges.items()}
        for start, end, rates in ((look.since, seen_from, {}), (seen_from, look.now, beside)):
            seconds = (end - start).total_seconds()
            if seconds > 0:
                took = holds.unpaid_seconds(held, start, end, entry_s)
                usage = shares.advance(
                    usage, look.rates(rates, took, seconds), seconds, half_life_s
                )
        for owner, count in holds.fees(held, look.since, look.now, entry_s).items():
            fee = shares.entry(look.part(count), entry_s, half_life_s)
            usage[owner] = max(0.0, usage.get(owner, 0.0) + fee)
        self._write(rows, usage, look, seen_from, half_life_s)

    def _write(
        self,
        rows: Mapping[str, UsedShare],
        usage: Mapping[str, float],
        look: _Look,
        seen_from: datetime,
        half_life_s: float,
    ) -> None:
        b = shares.kept((look.now - look.since).total_seconds(), half_life_s)
        seen_s = (look.now - seen_from).total_seconds()
        written: list[UsedShare] = []
        forgotten: list[UsedShare] = []
        for owner in sorted(usage.keys() | look.charges.keys()):
            row = rows.get(owner) or UsedShare(host=self._host, owner=owner)
            charge = look.charges.get(owner, NOTHING)
            row.usage, row.charge, row.outside = usage.get(owner, 0.0), charge.gpus, charge.outside
            row.seen_s = b * row.seen_s + seen_s * charge.seen
            row.known_s = b * row.known_s + seen_s * charge.known
            forget = row.usage < shares.NOTHING and not charge.seen
            (forgotten if forget else written).append(row)
        share_rows.set_used(written)
        share_rows.forget(forgotten)
