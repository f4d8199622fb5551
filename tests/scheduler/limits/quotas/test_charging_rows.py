from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection
from django.db.models import TextField, Value

from monitor.facts.readings import ProcessReading, Snapshot
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import HostSample, Lease
from monitor.usage.rows import rollups
from monitor.usage.rows.rollups import RetentionPeriods
from scheduler.limits.quotas import rows as quota_rows
from scheduler.limits.quotas.policy import charging
from scheduler.limits.quotas.step import Charging
from scheduler.models import DailyGpuUsage, HostCapacity, UsageShare
from tests.builders import GIB, NOW, claim, gpu_uuid, process, snapshot

pytestmark = pytest.mark.django_db
HALF_LIFE = 2 * 86_400.0
KEEP = RetentionPeriods(raw=timedelta(hours=2))
FEE = charging.entry(0.25, 3600, HALF_LIFE)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def look(
    seconds: float, processes: Sequence[ProcessReading] = (), zone: str = "UTC"
) -> Snapshot | None:
    """One look of a fresh part, as after a restart, at a machine of four GPUs."""
    shot = snapshot(4, processes, at=at(seconds))
    Charging("gpubox", zone).judge(shot, at(seconds))
    return shot


def usage(owner: str = "alice") -> float:
    return UsageShare.objects.get(owner=owner).usage


def spent(owner: str = "alice") -> tuple[float, float]:
    row = DailyGpuUsage.objects.get(owner=owner)
    return row.job_s, row.outside_s


def test_the_first_look_charges_nothing_and_says_what_is_shared_out() -> None:
    look(0, [process(memory_bytes=40 * GIB)])

    assert usage() == 0
    assert DailyGpuUsage.objects.count() == 0
    assert HostCapacity.objects.get().gpu_uuids == [gpu_uuid(i) for i in range(4)]


def test_other_processes_are_charged_to_their_owner_and_fade_afterwards() -> None:
    busy = [process(memory_bytes=40 * GIB, sm_pct=None)]
    for second in (0, 5, 10, 17):
        look(second, busy)

    expected = charging.advance({}, {"alice": 0.125}, 17, HALF_LIFE)["alice"]
    assert usage() == pytest.approx(expected)
    assert spent() == (0, pytest.approx(8.5))
    look(22)
    assert usage() == pytest.approx(expected * charging.decay_factor(5, HALF_LIFE))
    assert UsageShare.objects.get().charge == 0


def test_a_job_pays_for_its_first_hour_at_its_start_and_gets_back_what_is_left_of_it() -> None:
    look(0)
    snapshots.open_claim(claim(), "gpubox", at(2))
    look(5)
    paid = usage()
    look(10)
    snapshots.close_claims("1", at(12))
    look(15)

    assert paid == pytest.approx(FEE)
    assert usage() == pytest.approx(FEE * 10 / 3600, rel=0.03)
    assert spent() == (pytest.approx(10), 0)


def test_a_job_of_hours_has_cost_what_it_kept() -> None:
    look(0)
    snapshots.open_claim(claim(), "gpubox", at(1))
    for second in (600, 3000, 4000, 3 * 3600):
        look(second)

    kept = charging.advance({}, {"a": 0.25}, 3 * 3600, HALF_LIFE)["a"]
    assert usage() == pytest.approx(kept, rel=0.03)


def test_of_a_time_without_looks_jobs_are_charged_whole_and_others_for_its_end() -> None:
    both = [process(memory_bytes=40 * GIB, user="bob")]
    snapshots.open_claim(claim(), "gpubox", at(-7200))
    look(0, both)
    look(3600, both)

    assert spent("alice") == (pytest.approx(3600), 0)
    assert spent("bob") == (0, pytest.approx(7.5))
    whole = charging.advance({}, {"a": 0.25}, 3600, HALF_LIFE)["a"]
    assert usage("alice") == pytest.approx(whole)


def test_a_job_that_ended_while_gpucoord_was_down_costs_until_its_end() -> None:
    look(0)
    snapshots.open_claim(claim(), "gpubox", at(2))
    look(5)
    back = int(at(3600).timestamp())
    HostSample.objects.create(host="gpubox", t=int(at(5).timestamp()))
    HostSample.objects.bulk_create(HostSample(host="gpubox", t=back + n) for n in range(12))
    scheduler = Lease.objects.create(
        name="scheduler:gpubox", loop="scheduler", host="gpubox", expires_at=NOW, last_tick_at=at(5)
    )
    look(3602)

    assert spent() == (pytest.approx(3), 0)
    scheduler.last_tick_at = at(3603)
    scheduler.save()
    snapshots.close_claims("1", at(60))
    look(3607)
    assert spent() == (pytest.approx(58), 0)
    assert usage() < FEE * 60 / 3600


def test_charging_waits_only_shortly_for_a_scheduler_that_does_not_run() -> None:
    look(0)
    snapshots.open_claim(claim(), "gpubox", at(2))
    Lease.objects.create(name="s", loop="scheduler", host="gpubox", expires_at=NOW)
    back = int(at(3600).timestamp())
    HostSample.objects.create(host="gpubox", t=int(at(0).timestamp()))
    HostSample.objects.bulk_create(HostSample(host="gpubox", t=back + n) for n in range(12))
    look(3605)
    assert not DailyGpuUsage.objects.exists()

    look(3611)
    assert spent() == (pytest.approx(3609), 0)


def test_each_second_is_spent_on_its_own_day() -> None:
    # Noon in UTC is midnight in Auckland, less an hour of summer time.
    look(-3605, zone="Pacific/Auckland")
    snapshots.open_claim(claim(), "gpubox", at(-4000))
    look(-3595, zone="Pacific/Auckland")

    rows = DailyGpuUsage.objects.order_by("from_at")
    assert [(row.from_at, row.job_s) for row in rows] == [
        (at(-90_000), pytest.approx(5)),
        (at(-3600), pytest.approx(5)),
    ]


def test_the_same_instant_twice_charges_once() -> None:
    busy = [process(memory_bytes=40 * GIB)]
    for second in (0, 5, 5, 4):
        look(second, busy)

    assert spent() == (0, pytest.approx(2.5))


def test_nobody_is_charged_by_a_reading_that_is_not_there() -> None:
    assert Charging("gpubox", "UTC").judge(None, NOW) is None
    assert not HostCapacity.objects.exists()


def test_who_has_used_nothing_for_long_is_forgotten_but_not_what_they_spent() -> None:
    busy = [process(memory_bytes=40 * GIB)]
    look(0, busy)
    look(10, busy)
    look(60 * 86_400)

    assert not UsageShare.objects.exists()
    assert spent() == (0, pytest.approx(5))


def test_a_use_that_nobody_can_measure_lessens_the_coverage() -> None:
    for second in (0, 10):
        look(second, [process(1), process(2, on=1, memory_bytes=None, sm_pct=None)])

    row = UsageShare.objects.get()
    assert (row.known_s, row.seen_s) == (pytest.approx(10), pytest.approx(20))


def test_days_of_the_ledger_are_kept_as_long_as_hours_are() -> None:
    for days in (731, 729, 0):
        DailyGpuUsage.objects.create(
            host="gpubox", owner="alice", from_at=NOW - timedelta(days=days)
        )

    gone = rollups.prune(KEEP, NOW)
    assert (gone["dailygpuusage"], DailyGpuUsage.objects.count()) == (1, 2)


def test_a_host_that_was_taken_away_is_forgotten_with_what_was_used_there() -> None:
    for host, days in (("gone", 8), ("away", 6)):
        HostCapacity.objects.create(host=host, at=NOW - timedelta(days=days))
        UsageShare.objects.create(host=host, owner="alice")
    rollups.prune(KEEP, NOW)

    assert HostCapacity.objects.get().host == "away"
    assert UsageShare.objects.get().host == "away"


@pytest.mark.parametrize("column", ["usage", "seen_s"])
def test_an_unreadable_usage_row_stops_no_other_owner(column: str) -> None:
    if connection.vendor == "postgresql":
        pytest.skip("PostgreSQL refuses such a value")
    busy = [process(memory_bytes=40 * GIB), process(9, 1, user="bob", memory_bytes=40 * GIB)]
    look(0, busy)
    look(5, busy)
    before, broken = usage("bob"), UsageShare.objects.filter(owner="alice")
    broken.update(**{column: Value("odd", output_field=TextField())})

    look(10, busy)

    assert usage("bob") > before
    assert spent("bob")[1] == pytest.approx(5)
    assert broken.values_list(column, flat=True).get() == "odd"


def test_an_unreadable_claim_stops_no_other_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshots.open_claim(claim("1", gpu_uuid=gpu_uuid(0), memory_bytes=None), "gpubox", at(0))
    snapshots.open_claim(
        claim("2", gpu_uuid=gpu_uuid(1), owner="bob", memory_bytes=GIB), "gpubox", at(0)
    )
    look(0)
    part = quota_rows.part

    def odd(memory_bytes: int | None, exclusive: bool, gpu_bytes: int | None) -> float:
        if memory_bytes is None:
            raise ValueError("odd")
        return part(memory_bytes, exclusive, gpu_bytes)

    monkeypatch.setattr(quota_rows, "part", odd)
    look(10)

    assert not DailyGpuUsage.objects.filter(owner="alice").exists()
    assert spent("bob")[0] > 0


def test_a_row_refused_by_the_database_stops_no_other_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = [process(memory_bytes=40 * GIB), process(9, 1, user="bob", memory_bytes=40 * GIB)]
    look(0, busy)
    upsert = quota_rows.upsert_rows

    def refuse(rows: Any, *names: Any) -> None:
        if any(getattr(row, "owner", "") == "alice" for row in rows):
            raise IntegrityError("refused")
        upsert(rows, *names)

    monkeypatch.setattr(quota_rows, "upsert_rows", refuse)

    look(10, busy)

    assert spent("bob")[1] == pytest.approx(5)
    assert usage("bob") > 0
    assert not DailyGpuUsage.objects.filter(owner="alice").exists()
