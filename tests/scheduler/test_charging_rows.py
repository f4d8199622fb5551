from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from monitor import pruning, store
from monitor.pruning import Keep
from monitor.readings import ProcessReading, Snapshot
from scheduler.charging import Charging
from scheduler.models import GpuDay, SharedOut, UsedShare
from scheduler.policy import shares
from tests.builders import GIB, NOW, claim, gpu_uuid, process, snapshot

pytestmark = pytest.mark.django_db
HALF_LIFE = 2 * 86_400.0
KEEP = Keep(raw=timedelta(hours=2))
FEE = shares.entry(0.25, 3600, HALF_LIFE)


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
    return UsedShare.objects.get(owner=owner).usage


def spent(owner: str = "alice") -> tuple[float, float]:
    row = GpuDay.objects.get(owner=owner)
    return row.job_s, row.outside_s


def test_the_first_look_charges_nothing_and_says_what_is_shared_out() -> None:
    look(0, [process(memory_bytes=40 * GIB)])

    assert usage() == 0
    assert GpuDay.objects.count() == 0
    assert SharedOut.objects.get().gpu_uuids == [gpu_uuid(i) for i in range(4)]


def test_other_processes_are_charged_to_their_owner_and_fade_afterwards() -> None:
    busy = [process(memory_bytes=40 * GIB, sm_pct=None)]
    for second in (0, 5, 10, 17):
        look(second, busy)

    expected = shares.advance({}, {"alice": 0.125}, 17, HALF_LIFE)["alice"]
    assert usage() == pytest.approx(expected)
    assert spent() == (0, pytest.approx(8.5))
    look(22)
    assert usage() == pytest.approx(expected * shares.kept(5, HALF_LIFE))
    assert UsedShare.objects.get().charge == 0


def test_a_job_pays_for_its_first_hour_at_its_start_and_gets_back_what_is_left_of_it() -> None:
    look(0)
    store.open_claim(claim(), "gpubox", at(2))
    look(5)
    paid = usage()
    look(10)
    store.close_claims("1", at(12))
    look(15)

    assert paid == pytest.approx(FEE)
    assert usage() == pytest.approx(FEE * 10 / 3600, rel=0.03)
    assert spent() == (pytest.approx(10), 0)


def test_a_job_of_hours_has_cost_what_it_kept() -> None:
    look(0)
    store.open_claim(claim(), "gpubox", at(1))
    for second in (600, 3000, 4000, 3 * 3600):
        look(second)

    kept = shares.advance({}, {"a": 0.25}, 3 * 3600, HALF_LIFE)["a"]
    assert usage() == pytest.approx(kept, rel=0.03)


def test_of_a_time_without_looks_jobs_are_charged_whole_and_others_for_its_end() -> None:
    both = [process(memory_bytes=40 * GIB, user="bob")]
    store.open_claim(claim(), "gpubox", at(-7200))
    look(0, both)
    look(3600, both)

    assert spent("alice") == (pytest.approx(3600), 0)
    assert spent("bob") == (0, pytest.approx(7.5))
    whole = shares.advance({}, {"a": 0.25}, 3600, HALF_LIFE)["a"]
    assert usage("alice") == pytest.approx(whole)


def test_each_second_is_spent_on_its_own_day() -> None:
    # Noon in UTC is midnight in Auckland, less an hour of summer time.
    look(-3605, zone="Pacific/Auckland")
    store.open_claim(claim(), "gpubox", at(-4000))
    look(-3595, zone="Pacific/Auckland")

    rows = GpuDay.objects.order_by("from_at")
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
    assert not SharedOut.objects.exists()


def test_who_has_used_nothing_for_long_is_forgotten_but_not_what_they_spent() -> None:
    busy = [process(memory_bytes=40 * GIB)]
    look(0, busy)
    look(10, busy)
    look(60 * 86_400)

    assert not UsedShare.objects.exists()
    assert spent() == (0, pytest.approx(5))


def test_a_use_that_nobody_can_measure_lessens_the_coverage() -> None:
    for second in (0, 10):
        look(second, [process(1), process(2, on=1, memory_bytes=None, sm_pct=None)])

    row = UsedShare.objects.get()
    assert (row.known_s, row.seen_s) == (pytest.approx(10), pytest.approx(20))


def test_days_of_the_ledger_are_kept_as_long_as_hours_are() -> None:
    for days in (731, 729, 0):
        GpuDay.objects.create(host="gpubox", owner="alice", from_at=NOW - timedelta(days=days))

    gone = pruning.prune(KEEP, NOW)
    assert (gone["gpuday"], GpuDay.objects.count()) == (1, 2)


def test_a_host_that_was_taken_away_is_forgotten_with_what_was_used_there() -> None:
    for host, days in (("gone", 8), ("away", 6)):
        SharedOut.objects.create(host=host, at=NOW - timedelta(days=days))
        UsedShare.objects.create(host=host, owner="alice")
    pruning.prune(KEEP, NOW)

    assert SharedOut.objects.get().host == "away"
    assert UsedShare.objects.get().host == "away"
