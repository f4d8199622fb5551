"""Policy: the charge of each user for GPUs, its decay, fair-share targets and daily budgets.

job              the whole GPU if it is exclusive or declares no memory; else the largest of its
                 declared memory, its used memory and its GPU time, as parts of the GPU
other processes  the larger of memory and GPU time, as parts of the GPU; one known value is enough

A process with neither value known is not charged and lowers the coverage. A user is charged for at
most the whole of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from itertools import accumulate
from math import inf
from zoneinfo import ZoneInfo

from msgspec import Struct

from monitor.facts.accounts import ClaimFact
from monitor.facts.readings import GpuReading, Health, ProcessReading, Snapshot
from monitor.gpus.policy.capability import hidden
from scheduler.facts.people import Budget, Capacity


class GpuUseSpan(Struct, frozen=True):
    """A job's claim on a part of a GPU. until_at: None = it is open."""

    owner: str
    job_ref: str
    part: float
    from_at: datetime
    until_at: datetime | None = None

    def seconds(self, since: datetime, until: datetime) -> float:
        """GPU-seconds in that time."""
        end = until if self.until_at is None else min(until, self.until_at)
        return self.part * max(0.0, (end - max(since, self.from_at)).total_seconds())

    def unpaid_seconds(self, since: datetime, until: datetime, entry_s: float) -> float:
        """The same, of what was not paid for at its start."""
        return self.seconds(max(since, self.from_at + timedelta(seconds=entry_s)), until)

    def fee(self, since: datetime, until: datetime, entry_s: float) -> float:
        """Cost of its start in that time, returned by an early end: 1 = the first hour of
        a whole GPU."""
        fee = self.part if since < self.from_at <= until else 0.0
        if self.until_at is not None and since < self.until_at <= until and entry_s > 0:
            ran = (self.until_at - self.from_at).total_seconds() / entry_s
            fee -= self.part * max(0.0, 1.0 - max(0.0, ran))
        return fee


def held_seconds(holds: Iterable[GpuUseSpan], since: datetime, until: datetime) -> dict[str, float]:
    """GPU-seconds by owner."""
    return _sum((hold.owner, hold.seconds(since, until)) for hold in holds)


def unpaid_seconds(
    holds: Iterable[GpuUseSpan], since: datetime, until: datetime, entry_s: float
) -> dict[str, float]:
    """GPU-seconds by owner, without those charged at the start of jobs."""
    return _sum((hold.owner, hold.unpaid_seconds(since, until, entry_s)) for hold in holds)


def fees(
    holds: Iterable[GpuUseSpan], since: datetime, until: datetime, entry_s: float
) -> dict[str, float]:
    """By owner, for starts and early ends in that time."""
    return _sum((hold.owner, hold.fee(since, until, entry_s)) for hold in holds)


def _sum(amounts: Iterable[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for owner, value in amounts:
        if value:
            sums[owner] = sums.get(owner, 0.0) + value
    return sums


class Charge(Struct):
    """In GPUs. outside: the part that no job of ours takes. excess: what jobs take beyond what they
    keep from others.

    occupied_gpus: on how many GPUs they have processes. known_gpus: on how many of these the charge
    is known.
    """

    gpus: float = 0.0
    outside: float = 0.0
    excess: float = 0.0
    occupied_gpus: int = 0
    known_gpus: int = 0


def capacity(snapshot: Snapshot) -> Capacity:
    """The GPUs of this instance that can be read."""
    left_out = hidden(snapshot.gpus, snapshot.host.limits)
    ours = [g for g in snapshot.gpus if g.uuid not in left_out and g.health is not Health.LOST]
    sizes = [g.memory_total_bytes for g in ours if g.memory_total_bytes]
    return Capacity(
        gpu_uuids=tuple(g.uuid for g in ours),
        gpu_bytes=sum(sizes) // len(sizes) if sizes else None,
    )


def part(memory_bytes: int | None, exclusive: bool, gpu_bytes: int | None) -> float:
    """The part of a GPU that a job reserves, 0..1."""
    if exclusive or memory_bytes is None or not gpu_bytes:
        return 1.0
    return min(1.0, memory_bytes / gpu_bytes)


def added(parts: Iterable[Mapping[str, Charge]]) -> dict[str, Charge]:
    """The charges of several GPUs together."""
    sums: dict[str, Charge] = {}
    for charges_of_gpu in parts:
        for owner, charge in charges_of_gpu.items():
            total = sums.setdefault(owner, Charge())
            total.gpus += charge.gpus
            total.outside += charge.outside
            total.excess += charge.excess
            total.occupied_gpus += charge.occupied_gpus
            total.known_gpus += charge.known_gpus
    return sums


def charges_on(
    gpu: GpuReading, snapshot: Snapshot, claims: Sequence[ClaimFact]
) -> dict[str, Charge]:
    """Part of one GPU that each owner takes. `claims`: also those on other GPUs.

    A process with an unknown owner is charged to no user.
    """
    by_owner: dict[str, Charge] = {}
    here = [claim for claim in claims if claim.gpu_uuid == gpu.uuid]
    _gpu(gpu, here, snapshot.on(gpu.uuid), by_owner)
    return by_owner


def _gpu(
    gpu: GpuReading,
    claims: Sequence[ClaimFact],
    processes: Sequence[ProcessReading],
    by_owner: dict[str, Charge],
) -> None:
    refs = {claim.job_ref: claim for claim in claims}
    taken: dict[str, list[float]] = {}
    for ref, claim in refs.items():
        reserved = part(claim.memory_bytes, claim.exclusive, gpu.memory_total_bytes)
        used = sum(_of(gpu, process) or 0.0 for process in processes if process.job_ref == ref)
        _add(taken, claim.owner, reserved, max(0.0, used - reserved), 0.0)
        _seen(by_owner, claim.owner, is_known=True)
    for process in processes:
        owner = process.job_owner or process.user
        if process.job_ref in refs or not owner:
            continue
        used_by = _of(gpu, process)
        _add(taken, owner, 0.0, 0.0, used_by or 0.0)
        _seen(by_owner, owner, is_known=used_by is not None)
    _take(taken, by_owner)


def _take(taken: Mapping[str, Sequence[float]], by_owner: Mapping[str, Charge]) -> None:
    """Add the use of one GPU by each owner: reservations of jobs first, at most the whole GPU."""
    for owner, (reserved, excess, outside) in taken.items():
        reserved = min(1.0, reserved)
        excess = min(excess, 1.0 - reserved)
        outside = min(outside, 1.0 - reserved - excess)
        charge = by_owner[owner]
        charge.gpus += reserved + excess + outside
        charge.excess += excess
        charge.outside += outside


def _add(taken: dict[str, list[float]], owner: str, *parts: float) -> None:
    sums = taken.setdefault(owner, [0.0, 0.0, 0.0])
    taken[owner] = [a + b for a, b in zip(sums, parts, strict=True)]


def _of(gpu: GpuReading, process: ProcessReading) -> float | None:
    """The larger of the known values of memory and GPU time, as parts of the GPU."""
    parts = []
    if process.memory_bytes is not None and gpu.memory_total_bytes:
        parts.append(process.memory_bytes / gpu.memory_total_bytes)
    if process.sm_pct is not None:
        parts.append(process.sm_pct / 100)
    return min(1.0, max(parts)) if parts else None


def _seen(by_owner: dict[str, Charge], owner: str, *, is_known: bool) -> None:
    charge = by_owner.setdefault(owner, Charge())
    charge.occupied_gpus += 1
    charge.known_gpus += is_known


# Minimum part for all users without an own share together, if shares add up to 100 %.
LEAST_REST = 0.05
# A smaller usage is removed: a millionth of the capacity.
NOTHING = 1e-6


def decay_factor(seconds: float, half_life_s: float) -> float:
    """The part of past usage that still counts after this time."""
    return float(0.5 ** (max(0.0, seconds) / half_life_s))


def advance(
    usage: Mapping[str, float], rates: Mapping[str, float], seconds: float, half_life_s: float
) -> dict[str, float]:
    """Usage by owner after they used `rates` (parts of the capacity) for this time.

    U = b * U + (1 - b) * rate, b = 0.5 ^ (time / half-life): exact for steps of any length. Usage
    is relative to the capacity, so using an idle machine costs little.
    """
    b = decay_factor(seconds, half_life_s)
    owners = usage.keys() | rates.keys()
    return {o: b * usage.get(o, 0.0) + (1 - b) * rates.get(o, 0.0) for o in sorted(owners)}


def entry(part: float, entry_s: float, half_life_s: float) -> float:
    """The usage that is charged at the start of a job with this part of the capacity."""
    return (1 - decay_factor(entry_s, half_life_s)) * part


def factor(usage: float, share: float) -> float:
    """The displayed fair-share factor: 1 = no usage, 0.5 = usage equal to the share."""
    if share <= 0:
        return 1.0 if usage <= 0 else 0.0
    return float(2.0 ** (-usage / share))


def entitlements(shares: Mapping[str, float | None]) -> dict[str, float]:
    """The part of the capacity that quotas grant each of these users; the sum is at most 1.

    A share is in percent. Users without one divide the rest, of which there is always some. Shares
    that exceed the machine together are reduced in proportion.
    """
    agreed = {owner: share / 100 for owner, share in shares.items() if share is not None}
    rest = len(shares) - len(agreed)
    left = max(LEAST_REST, 1 - sum(agreed.values())) if rest else 0.0
    parts = {owner: agreed.get(owner, left / rest if rest else 0.0) for owner in shares}
    whole = max(1.0, sum(parts.values()))
    return {owner: part / whole for owner, part in parts.items()}


def weights(shares: Mapping[str, float | None]) -> dict[str, float]:
    """The part of the capacity for each owner while all of them have demand; the sum is 1."""
    parts = entitlements(shares)
    total = sum(parts.values())
    return {owner: part / total if total else 1 / len(parts) for owner, part in parts.items()}


def targets(
    weights: Mapping[str, float],
    usage: Mapping[str, float],
    catch_up: float,
    demands: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Target share of each owner with demand: max(0, W + catch_up * (W - U)), normalised.

    demands: parts of the capacity that owners can use; what one cannot use goes to the others.
    """
    wished = {
        owner: max(0.0, weight + catch_up * (weight - usage.get(owner, 0.0)))
        for owner, weight in weights.items()
    }
    total = sum(wished.values())
    parts = {owner: part / total for owner, part in wished.items()} if total else dict(weights)
    return max_min(parts, demands) if demands else parts


def max_min(
    weights: Mapping[str, float], demands: Mapping[str, float], whole: float = 1.0
) -> dict[str, float]:
    """Weighted max-min fair parts of `whole`, none above its demand; no entry = any demand.

    Owners with weight 0 divide what the others leave.
    """

    def saturates_at(owner: str) -> float:
        demand = demands.get(owner, inf)
        return demand / weights[owner] if weights[owner] > 0 else inf

    parts: dict[str, float] = {}
    in_order = sorted(weights, key=lambda owner: (weights[owner] <= 0, saturates_at(owner)))
    # Added up from the end: a difference of sums may be 0 where a tiny weight is left.
    rests = [*accumulate(weights[owner] for owner in reversed(in_order))][::-1]
    left = whole
    for served, (owner, rest) in enumerate(zip(in_order, rests, strict=True)):
        weight = weights[owner]
        fair = left * (weight / rest) if weight > 0 else left / (len(in_order) - served)
        parts[owner] = min(demands.get(owner, inf), fair)
        left = max(0.0, left - parts[owner])
    return parts


# This many owed GPU-seconds count like a GPU. More would delay the payback of short jobs; less
# would exchange users more often than the ledger is written.
OWED_PER_GPU_S = 15.0


def owed_gpus(owed_s: float) -> float:
    """GPUs by which a user's holdings count as less, at most one: it pays back the rest of shares
    that are no whole number of GPUs, and does not let a user take the machine."""
    return max(-1.0, min(1.0, owed_s / OWED_PER_GPU_S))


def owed_seconds(
    owed_s: Mapping[str, float],
    shares: Mapping[str, float],
    demands: Mapping[str, float],
    in_use: float,
    held_s: Mapping[str, float],
) -> dict[str, float]:
    """GPU-seconds that owners should have held beyond those that they held; the sum is 0.

    owed_s: before a time in which they held `held_s`. shares: of the owners with demand in it.
    demands, in_use: in GPUs; only GPUs in use are divided. An owner without demand has received
    everything, so what they were owed is divided among the others by share, as in EEVDF (Stoica and
    Abdel-Wahab 1995).
    """
    fair = max_min(shares, demands, in_use)
    total, used_s = sum(fair.values()), sum(held_s.get(owner, 0.0) for owner in shares)
    whole = sum(shares.values())
    if not total or not whole:
        return {}
    left_s = sum(owed_s.get(owner, 0.0) for owner in shares)
    return {
        owner: owed_s.get(owner, 0.0)
        - left_s * share / whole
        + used_s * fair[owner] / total
        - held_s.get(owner, 0.0)
        for owner, share in shares.items()
    }


def usage_from_days(
    days: Iterable[tuple[Day, float]], at: datetime, gpus: int, half_life_s: float
) -> float:
    """The decayed mean at `at` from (day, GPU-seconds), as if each day's use was even."""
    usage = 0.0
    for day, seconds in days:
        end = min(day.until_at, at)
        if end > day.from_at:
            rate = seconds / (day.until_at - day.from_at).total_seconds() / gpus
            older, newer = (at - day.from_at).total_seconds(), (at - end).total_seconds()
            usage += rate * (decay_factor(newer, half_life_s) - decay_factor(older, half_life_s))
    return usage


class Day(Struct, frozen=True):
    """A day of the ledger; both instants are in UTC."""

    from_at: datetime
    until_at: datetime


def day(at: datetime, zone: str) -> Day:
    """The day in which `at` is: 23, 24 or 25 hours of it."""
    today = at.astimezone(ZoneInfo(zone)).date()
    return Day(midnight(today, zone), midnight(today + timedelta(days=1), zone))


def resets_at(at: datetime, zone: str) -> datetime:
    """When the day of `at` ends, in its zone."""
    return day(at, zone).until_at.astimezone(ZoneInfo(zone))


def midnight(of: date, zone: str) -> datetime:
    """The instant at which a date begins. If clocks skip midnight, the first instant after it."""
    return datetime.combine(of, time(), ZoneInfo(zone)).astimezone(UTC)


def days(since: datetime, until: datetime, zone: str) -> Iterator[tuple[Day, datetime, datetime]]:
    """The days that such a time touches, each with the part of the time that is in it."""
    start = since
    while start < until:
        current = day(start, zone)
        end = min(until, current.until_at)
        yield current, start, end
        start = end


def budget(
    limit: float,
    spent: float,
    running: Iterable[tuple[float, timedelta | None]],
    until: datetime,
    zone: str,
) -> Budget:
    """The budget of a user on a day that ends at `until`, displayed in `zone`.

    running: (GPUs held, remaining time) of each job. A job with unknown remaining time commits the
    rest of the budget, so nothing else starts until it ends.
    """
    committed, endless = 0.0, False
    for gpus, remaining in running:
        if remaining is None:
            endless = endless or gpus > 0
        else:
            committed += gpus * max(0.0, remaining.total_seconds()) / 60
    if endless:
        committed = max(committed, limit - spent)
    return Budget(
        limit=limit,
        spent=spent,
        committed=committed,
        resets_at=until,
        zone=zone,
    )
