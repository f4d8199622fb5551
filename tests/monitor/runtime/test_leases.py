from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from monitor.models import Event, Lease
from monitor.runtime.probes.process_identity import Identity, boot_id, me
from monitor.runtime.rows import leases
from monitor.runtime.rows.leases import HeldLease, LeaseLost, LeaseSpec

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
TTL = timedelta(seconds=6)
SPEC = LeaseSpec("sampler", "north", 1, TTL)
FIRST = Identity(11, 111, "a boot")
SECOND = Identity(22, 222, "a boot")


def take(who: Identity = FIRST, now: datetime = NOW) -> HeldLease:
    held = leases.acquire(SPEC, who, now)
    assert held is not None
    return held


def test_the_first_to_ask_gets_the_lease() -> None:
    held = take()

    row = Lease.objects.get(pk="sampler:north")
    assert held.epoch == row.epoch == 1
    assert (row.pid, row.start_ticks, row.boot_id) == (11, 111, "a boot")
    assert row.expires_at == NOW + TTL


def test_no_other_process_gets_it_while_it_is_valid() -> None:
    take()

    assert leases.acquire(SPEC, SECOND, NOW + TTL - timedelta(microseconds=1)) is None


def test_an_expired_lease_goes_to_the_next_with_a_new_epoch() -> None:
    take()

    assert take(SECOND, NOW + TTL).epoch == 2


def test_renewing_keeps_it() -> None:
    held = take()

    leases.renew(held, NOW + timedelta(seconds=5), ticks=7)

    assert leases.acquire(SPEC, SECOND, NOW + TTL) is None
    assert Lease.objects.get().ticks == 7


def test_a_superseded_holder_commits_nothing() -> None:
    held = take()
    take(SECOND, NOW + TTL)

    @transaction.atomic
    def tick() -> None:
        Event.objects.create(at=NOW, kind="TICK", text="by the old holder")
        leases.renew(held, NOW + TTL)

    with pytest.raises(LeaseLost):
        tick()

    assert not Event.objects.exists()


def test_an_expired_lease_that_is_still_free_may_be_renewed() -> None:
    held = take()

    leases.renew(held, NOW + 2 * TTL)

    assert Lease.objects.get().expires_at == NOW + 3 * TTL


def test_a_released_lease_is_free_at_once() -> None:
    held = take()

    assert leases.release(held, NOW)
    assert take(SECOND, NOW).epoch == 2
    # It should not be given up again by one who has lost it.
    assert not leases.release(held, NOW)


def test_only_the_epoch_that_holds_it_is_held() -> None:
    held = take()

    assert leases.is_held(SPEC, held.epoch, NOW)
    assert not leases.is_held(SPEC, held.epoch + 1, NOW)
    assert not leases.is_held(SPEC, held.epoch, NOW + TTL)
    leases.release(held, NOW)
    assert not leases.is_held(SPEC, held.epoch, NOW)


def test_a_dead_holder_is_freed_and_fenced() -> None:
    held = take(Identity(os.getpid(), 1, boot_id()))

    assert leases.free_dead("north", NOW) == ["sampler"]

    with pytest.raises(LeaseLost):
        leases.renew(held, NOW)
    assert take(SECOND, NOW).epoch == 3


def test_a_living_holder_is_not_freed() -> None:
    take(me())

    assert leases.free_dead("north", NOW) == []


def test_leases_of_other_hosts_are_left_alone() -> None:
    held = take()

    assert leases.free_dead("south", NOW) == []
    assert leases.drop_host("south", NOW) == 0
    leases.renew(held, NOW)


def test_dropping_a_host_takes_all_its_leases() -> None:
    held = take(me())

    assert leases.drop_host("north", NOW) == 1

    with pytest.raises(LeaseLost):
        leases.renew(held, NOW)


def test_a_fault_is_reported_only_while_it_lasts() -> None:
    held = take()
    leases.renew(held, NOW, last_error="ValueError: no", failing_since_at=NOW)
    assert leases.facts("north")[0].error == "ValueError: no"

    leases.renew(held, NOW, failing_since_at=None)

    assert leases.facts("north")[0].error is None
