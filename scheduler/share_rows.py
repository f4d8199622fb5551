"""Rows <-> facts: what people took of a host's GPUs, as it fades, and in each day of the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from django.db.models import Model, Q, QuerySet

from monitor.claims import ClaimKind
from monitor.models import Claim
from monitor.prepared import prepared
from monitor.pruning import Keep
from scheduler.models import GpuDay, SharedOut, UsedShare
from scheduler.people import Capacity
from scheduler.policy.charging import part
from scheduler.policy.holds import Hold

_USED = ("usage", "charge", "outside", "seen_s", "known_s")


def charged_until(host: str) -> datetime | None:
    """Until when the use of a host's GPUs has been charged."""
    return next((row.at for row in _shared_out(host)), None)


@prepared
def _shared_out(host: str) -> QuerySet[SharedOut]:
    return SharedOut.objects.filter(pk=host)


def set_charged(host: str, at: datetime, capacity: Capacity) -> None:
    row = SharedOut(
        host=host, at=at, gpu_uuids=list(capacity.gpu_uuids), gpu_bytes=capacity.gpu_bytes
    )
    SharedOut.objects.bulk_create(
        [row],
        update_conflicts=True,
        unique_fields=["host"],
        update_fields=["at", "gpu_uuids", "gpu_bytes"],
    )


def used(host: str) -> dict[str, UsedShare]:
    return {row.owner: row for row in _used_rows(host)}


@prepared
def _used_rows(host: str) -> QuerySet[UsedShare]:
    return UsedShare.objects.filter(host=host)


def set_used(rows: Iterable[UsedShare]) -> None:
    UsedShare.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["host", "owner"], update_fields=_USED
    )


def forget(rows: Iterable[UsedShare]) -> None:
    """Who has used nothing for long."""
    if numbers := [row.pk for row in rows if row.pk]:
        UsedShare.objects.filter(pk__in=numbers).delete()


def holds(host: str, since: datetime, sizes: Mapping[str, int | None]) -> list[Hold]:
    """What jobs held of the host's GPUs since then; `sizes`: the memory of each GPU."""
    rows = Claim.objects.filter(host=host).exclude(kind=ClaimKind.LOCK.value)
    rows = rows.filter(Q(until_at__isnull=True) | Q(until_at__gt=since)).order_by()
    return [
        Hold(
            owner=owner,
            job_ref=ref,
            part=part(memory, exclusive, sizes.get(uuid)),
            from_at=from_at,
            until_at=until_at,
        )
        for owner, ref, memory, exclusive, uuid, from_at, until_at in rows.values_list(
            "owner", "job_ref", "memory_bytes", "exclusive", "gpu_uuid", "from_at", "until_at"
        )
    ]


def debit(
    host: str, from_at: datetime, jobs: Mapping[str, float], outside: Mapping[str, float]
) -> None:
    """Add GPU-seconds to a day of the ledger; nobody else writes to this host's."""
    owners = jobs.keys() | outside.keys()
    if not owners:
        return
    day = GpuDay.objects.filter(host=host, from_at=from_at, owner__in=owners)
    there = {row.owner: row for row in day}
    rows = [there.get(o) or GpuDay(host=host, owner=o, from_at=from_at) for o in sorted(owners)]
    for row in rows:
        row.job_s += jobs.get(row.owner, 0.0)
        row.outside_s += outside.get(row.owner, 0.0)
    GpuDay.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["from_at", "owner", "host"],
        update_fields=["job_s", "outside_s"],
    )


def spent(from_at: datetime) -> dict[str, GpuDay]:
    """What each person has spent of that day, on all hosts together."""
    found: dict[str, GpuDay] = {}
    for row in GpuDay.objects.filter(from_at=from_at):
        sums = found.setdefault(row.owner, GpuDay(owner=row.owner, from_at=from_at))
        sums.job_s += row.job_s
        sums.outside_s += row.outside_s
    return found


def too_old(keep: Keep, now: datetime) -> Iterator[QuerySet[Model]]:
    """Days of long ago, and what is left of hosts that were renamed or taken away."""
    yield GpuDay.objects.filter(from_at__lt=now - keep.hours)
    silent = SharedOut.objects.filter(at__lt=now - keep.silent_hosts)
    yield UsedShare.objects.filter(host__in=silent.values("host"))
    yield silent
