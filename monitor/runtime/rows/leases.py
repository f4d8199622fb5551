"""Leases: which process may run a loop, fenced by an epoch that grows with each holder."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, QuerySet
from msgspec import Struct

from monitor.facts.formats import fact_from
from monitor.models import Lease
from monitor.runtime.policy import LoopFact
from monitor.runtime.probes.process_identity import Identity, is_alive
from monitor.runtime.rows.database import update_rows


class LeaseLost(Exception):
    """Another process holds the lease now. The caller must stop and commit nothing."""


class LeaseSpec(Struct, frozen=True):
    """A lease to hold: one per loop and host."""

    loop: str
    host: str
    every_s: float
    ttl: timedelta

    @property
    def name(self) -> str:
        return f"{self.loop}:{self.host}"


class HeldLease(Struct, frozen=True):
    """A lease that this process acquired; valid until another process acquires the next epoch."""

    spec: LeaseSpec
    epoch: int


def acquire(spec: LeaseSpec, me: Identity, now: datetime) -> HeldLease | None:
    """Take the lease with the next epoch if it is free or expired; None if it is held."""
    _make_row(spec, now)
    with transaction.atomic():
        updated = Lease.objects.filter(pk=spec.name, expires_at__lte=now).update(
            epoch=F("epoch") + 1,
            pid=me.pid,
            start_ticks=me.start_ticks,
            boot_id=me.boot_id,
            every_s=spec.every_s,
            acquired_at=now,
            expires_at=now + spec.ttl,
        )
        if not updated:
            return None
        return HeldLease(spec, Lease.objects.values_list("epoch", flat=True).get(pk=spec.name))


def _make_row(spec: LeaseSpec, now: datetime) -> None:
    if not Lease.objects.filter(pk=spec.name).exists():
        row = Lease(name=spec.name, loop=spec.loop, host=spec.host, expires_at=now)
        Lease.objects.bulk_create([row], ignore_conflicts=True)


def renew(held: HeldLease, now: datetime, **fields: Any) -> None:
    """Extend the lease and set `fields` with it, or raise LeaseLost."""
    mine = {"pk": held.spec.name, "epoch": held.epoch}
    if not update_rows(Lease, mine, expires_at=now + held.spec.ttl, **fields):
        raise LeaseLost(held.spec.name)


def is_held(spec: LeaseSpec, epoch: int, now: datetime) -> bool:
    """Whether the holder of this epoch still has the lease."""
    live = Lease.objects.filter(pk=spec.name, epoch=epoch, expires_at__gt=now)
    return live.filter(pid__isnull=False).exists()


def row(held: HeldLease) -> Lease:
    return Lease.objects.get(pk=held.spec.name)


def release(held: HeldLease, now: datetime) -> bool:
    """Give up the lease; False if it was already lost."""
    mine = Lease.objects.filter(pk=held.spec.name, epoch=held.epoch)
    return bool(mine.update(expires_at=now, pid=None, start_ticks=None))


def free_dead(host: str, now: datetime) -> list[str]:
    """Free the leases of this host whose holders have died; returns their loops."""
    held = Lease.objects.filter(host=host, pid__isnull=False)
    dead = [row for row in held if not is_alive(row.pid, row.start_ticks, row.boot_id)]
    return [
        row.loop for row in dead if _drop(Lease.objects.filter(pk=row.pk, epoch=row.epoch), now)
    ]


def drop_host(host: str, now: datetime) -> int:
    """Revoke every lease of `host`, for example after all its processes were killed."""
    return _drop(Lease.objects.filter(host=host), now)


def _drop(rows: QuerySet[Lease], now: datetime) -> int:
    return rows.update(epoch=F("epoch") + 1, expires_at=now, pid=None, start_ticks=None)


def facts(host: str) -> list[LoopFact]:
    """The state of a host's loops, from its leases."""
    return [fact(row) for row in Lease.objects.filter(host=host)]


def fact(row: Lease) -> LoopFact:
    return fact_from(
        LoopFact, row, error=(row.last_error or None) if row.failing_since_at else None
    )
