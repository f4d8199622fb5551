"""Step: charge the use of GPUs to its owners every few seconds.

Jobs are charged for their claims, to the second, also for time in which gpucoord was down and they
ran. Other processes are charged by the newest snapshot, and for a gap only for its last seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from monitor.facts.accounts import JOB_KINDS
from monitor.facts.readings import Snapshot
from monitor.gpus.rows import hosts as host_rows
from monitor.gpus.rows.snapshot import open_claims
from monitor.runtime.rows import leases
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from scheduler.facts.people import Capacity
from scheduler.limits.quotas import rows as quota_rows
from scheduler.limits.quotas.policy import charging
from scheduler.limits.quotas.policy.charging import Charge, GpuUseSpan
from scheduler.limits.quotas.policy.quotas import ENTRY_S, QuotaPolicy
from scheduler.models import UsageShare

HOUR_S = 3600.0
NOTHING = Charge()
# If the clock was set back further than this, charging starts again from now.
SET_BACK = timedelta(minutes=1)

# `(owed before, held since then, seconds, now)`: GPU-seconds that users held too few, by owner.
OwedSeconds = Callable[
    [Mapping[str, float], Mapping[str, float], float, datetime], Mapping[str, float]
]


def nothing_owed(
    _owed_s: Mapping[str, float], _held_s: Mapping[str, float], _seconds: float, _now: datetime
) -> Mapping[str, float]:
    """Where no fair share is paid back."""
    return {}


class _ChargingPass(Struct, frozen=True):
    """The charges of the newest snapshot, and the time from `since` to `now` to charge.

    observed_from: processes outside of jobs are charged from here on; earlier it is unknown what
    ran.
    """

    capacity: Capacity
    charges: Mapping[str, Charge]
    since: datetime
    observed_from: datetime
    now: datetime

    @property
    def observed_s(self) -> float:
        return (self.now - self.observed_from).total_seconds()

    def decay(self, policy: QuotaPolicy) -> float:
        """The part of past values that still counts at the end of the pass."""
        seconds = (self.now - self.since).total_seconds()
        return charging.decay_factor(seconds, policy.half_life_hours * HOUR_S)

    def rates(
        self, beside: Mapping[str, float], held_s: Mapping[str, float], seconds: float
    ) -> dict[str, float]:
        """Rate of use by owner, as part of the capacity.

        beside: GPUs used beside claims. held_s: GPU-seconds of claims within `seconds`.
        """
        owners = sorted(beside.keys() | held_s.keys())
        return {
            owner: self.part(beside.get(owner, 0.0) + held_s.get(owner, 0.0) / seconds)
            for owner in owners
        }

    def part(self, gpus: float) -> float:
        """This many GPUs as part of the capacity."""
        count = len(self.capacity.gpu_uuids)
        return gpus / count if count else 0.0


class Charging:
    """A part of the controller; its state is in rows."""

    name = "charging"

    def __init__(self, host: str, zone: str, owed_seconds: OwedSeconds = nothing_owed) -> None:
        self._host = host
        self._zone = zone
        self._owed_seconds = owed_seconds
        self._isolation = ItemIsolation(host, self.name)

    def judge(self, snapshot: Snapshot | None, now: datetime) -> object:
        """Return the current charge by owner; None = there is no snapshot, or nothing to charge."""
        if snapshot is None:
            return None
        capacity = charging.capacity(snapshot)
        since = quota_rows.charged_until(self._host)
        if since is not None and now <= since and since - now < SET_BACK:
            return None
        if since is not None and self._waits_for_scheduler(since, now):
            return None
        claims = [c for c in open_claims(self._host) if c.kind in JOB_KINDS]
        by_gpu = self._isolation.convert(
            snapshot.gpus,
            lambda gpu: f"charges of GPU {gpu.index}",
            lambda gpu: charging.charges_on(gpu, snapshot, claims),
            now,
        )
        charges = charging.added(part for _, part in by_gpu)
        start = now if since is None or since > now else since
        policy = thresholds.current(QuotaPolicy)
        observed_from = max(start, now - host_rows.LONGEST_GAP)
        charging_pass = _ChargingPass(capacity, charges, start, observed_from, now)
        sizes = {gpu.uuid: gpu.memory_total_bytes for gpu in snapshot.gpus}
        holds = quota_rows.holds(self._host, start, sizes, self._isolation.converter(now))
        self._debit(charging_pass, holds)
        rows = quota_rows.used(self._host)
        owed = self._owed(charging_pass, holds, rows, policy)
        self._add_usage(charging_pass, holds, policy, rows, owed)
        quota_rows.set_charged(self._host, now, capacity)
        return charges

    def _waits_for_scheduler(self, since: datetime, now: datetime) -> bool:
        """Whether it has yet to end the jobs that ended while gpucoord was down."""
        if now - since <= host_rows.LONGEST_GAP or not host_rows.read_before_pause(self._host, now):
            return False
        loops = [loop for loop in leases.facts(self._host) if loop.loop == "scheduler"]
        ticks = [loop.last_tick_at for loop in loops]
        return any(at is None or now - at > host_rows.SETTLED for at in ticks)

    def _debit(self, charging_pass: _ChargingPass, holds: Sequence[GpuUseSpan]) -> None:
        """Add to the daily ledger; each second counts for its own day."""
        rates = {owner: c.outside for owner, c in charging_pass.charges.items() if c.outside}
        for day, start, end in charging.days(charging_pass.since, charging_pass.now, self._zone):
            seconds = max(0.0, (end - max(start, charging_pass.observed_from)).total_seconds())
            outside = {owner: rate * seconds for owner, rate in rates.items() if seconds}
            jobs = charging.held_seconds(holds, start, end)
            quota_rows.debit(
                self._host, day.from_at, jobs, outside, charging_pass.now, self._isolation
            )

    def _owed(
        self,
        charging_pass: _ChargingPass,
        holds: Sequence[GpuUseSpan],
        rows: Mapping[str, UsageShare],
        policy: QuotaPolicy,
    ) -> Mapping[str, float]:
        """GPU-seconds that users should have held beyond those that they held, while jobs wait."""
        since, now, seconds = (
            charging_pass.observed_from,
            charging_pass.now,
            charging_pass.observed_s,
        )
        decay = charging_pass.decay(policy)
        owed_s = dict(
            self._isolation.convert(
                list(rows), _usage_name, lambda owner: decay * float(rows[owner].owed_s), now
            )
        )
        if seconds <= 0:
            return owed_s
        held_s = charging.held_seconds(holds, since, now)
        for owner, charge in charging_pass.charges.items():
            beside = (charge.outside + charge.excess) * seconds
            held_s[owner] = held_s.get(owner, 0.0) + beside
        return self._owed_seconds(owed_s, held_s, seconds, now)

    def _add_usage(
        self,
        charging_pass: _ChargingPass,
        holds: Sequence[GpuUseSpan],
        policy: QuotaPolicy,
        rows: Mapping[str, UsageShare],
        owed: Mapping[str, float],
    ) -> None:
        """Add to the usage that decays."""
        since, observed_from, now = (
            charging_pass.since,
            charging_pass.observed_from,
            charging_pass.now,
        )
        half_life_s = policy.half_life_hours * HOUR_S
        readable = self._isolation.convert(
            list(rows), _usage_name, lambda owner: float(rows[owner].usage), now
        )
        usage = dict(readable)
        unreadable = rows.keys() - usage.keys()
        beside = {owner: c.outside + c.excess for owner, c in charging_pass.charges.items()}
        for start, end, rates in ((since, observed_from, {}), (observed_from, now, beside)):
            seconds = (end - start).total_seconds()
            if seconds > 0:
                held_s = charging.unpaid_seconds(holds, start, end, ENTRY_S)
                usage = charging.advance(
                    usage, charging_pass.rates(rates, held_s, seconds), seconds, half_life_s
                )
        for owner, count in charging.fees(holds, since, now, ENTRY_S).items():
            fee = charging.entry(charging_pass.part(count), ENTRY_S, half_life_s)
            usage[owner] = max(0.0, usage.get(owner, 0.0) + fee)
        for owner in unreadable:
            usage.pop(owner, None)
        self._write(rows, usage, owed, unreadable, charging_pass, charging_pass.decay(policy))

    def _write(
        self,
        rows: Mapping[str, UsageShare],
        usage: Mapping[str, float],
        owed: Mapping[str, float],
        unreadable: set[str],
        charging_pass: _ChargingPass,
        decay: float,
    ) -> None:
        """Write the usage of each owner; forget owners whose usage has decayed to nothing."""
        now = charging_pass.now

        def update(owner: str) -> UsageShare:
            row = rows.get(owner) or UsageShare(host=self._host, owner=owner)
            charge = charging_pass.charges.get(owner, NOTHING)
            # A new object: the action may run again if that of another owner fails.
            return UsageShare(
                pk=row.pk,
                host=self._host,
                owner=owner,
                usage=usage.get(owner, 0.0),
                charge=charge.gpus,
                outside=charge.outside,
                seen_s=decay * row.seen_s + charging_pass.observed_s * charge.occupied_gpus,
                known_s=decay * row.known_s + charging_pass.observed_s * charge.known_gpus,
                owed_s=owed.get(owner, 0.0),
            )

        names = usage.keys() | charging_pass.charges.keys() | owed.keys()
        owners = sorted(names - unreadable)
        written: list[UsageShare] = []
        forgotten: list[UsageShare] = []
        for owner, row in self._isolation.convert(owners, _usage_name, update, now):
            is_over = (
                row.usage < charging.NOTHING
                and abs(row.owed_s) < 1
                and not charging_pass.charges.get(owner, NOTHING).occupied_gpus
            )
            (forgotten if is_over else written).append(row)
        quota_rows.set_used(written, now, self._isolation)
        quota_rows.forget(forgotten)


def _usage_name(owner: str) -> str:
    return f"usage of {owner}"
