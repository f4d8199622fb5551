from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace

from monitor.facts.accounts import ClaimFact
from monitor.facts.readings import Health, Limits, Snapshot
from scheduler.limits.quotas.policy import charging
from scheduler.limits.quotas.policy.charging import GpuUseSpan
from tests.builders import GIB, NOW, claim, gpu, gpu_uuid, host, process, snapshot

HOUR = timedelta(hours=1)


def charges_of(shot: Snapshot, claims: Sequence[ClaimFact]) -> dict[str, charging.Charge]:
    return charging.added(charging.charges_on(gpu, shot, claims) for gpu in shot.gpus)


def test_a_process_is_charged_for_the_greater_of_memory_and_time() -> None:
    shot = snapshot(
        2,
        [
            process(1, memory_bytes=40 * GIB, sm_pct=10.0),
            process(2, on=1, user="bob", memory_bytes=8 * GIB, sm_pct=75.0),
        ],
    )
    charges = charges_of(shot, [])

    assert {owner: c.gpus for owner, c in charges.items()} == {"alice": 0.5, "bob": 0.75}
    assert charges["alice"].outside == 0.5


def test_memory_alone_counts_where_the_time_is_unknown() -> None:
    charges = charges_of(snapshot(1, [process(sm_pct=None, memory_bytes=20 * GIB)]), [])

    assert (charges["alice"].gpus, charges["alice"].known_gpus) == (0.25, 1)


def test_of_what_is_unknown_only_the_coverage_tells() -> None:
    charges = charges_of(snapshot(1, [process(sm_pct=None, memory_bytes=None)]), [])

    assert (charges["alice"].gpus, charges["alice"].occupied_gpus, charges["alice"].known_gpus) == (
        0.0,
        1,
        0,
    )


def test_a_process_that_nobody_owns_charges_nobody() -> None:
    assert charges_of(snapshot(1, [process(user=None)]), []) == {}


def test_a_job_that_has_a_gpu_alone_is_charged_for_all_of_it_though_it_sleeps() -> None:
    asleep = process(job_ref="1", job_owner="alice", sm_pct=0.0, memory_bytes=GIB)
    for held in (claim(exclusive=True), claim()):
        assert charges_of(snapshot(1, [asleep]), [held])["alice"].gpus == 1.0


def test_a_shared_job_is_charged_for_the_most_of_declared_held_and_used() -> None:
    held = claim(memory_bytes=20 * GIB)
    own = process(job_ref="1", job_owner="alice", user="nobody")

    def charged(**changes: float) -> float:
        shot = snapshot(1, [replace(own, **({"sm_pct": 0.0} | changes))])
        return charges_of(shot, [held])["alice"].gpus

    assert charged(memory_bytes=8 * GIB) == 0.25
    assert charged(memory_bytes=40 * GIB) == 0.5
    assert charged(memory_bytes=8 * GIB, sm_pct=70.0) == 0.7


def test_a_job_is_charged_to_its_owner_not_to_the_account_it_runs_as() -> None:
    own = process(job_ref="1", job_owner="bob", user="nobody")

    assert set(charges_of(snapshot(1, [own]), [claim(owner="bob")])) == {"bob"}


def test_what_a_job_leaves_behind_is_its_owners_other_process() -> None:
    left = process(job_ref="7", job_owner="bob", user="nobody", memory_bytes=40 * GIB)

    assert charges_of(snapshot(1, [left]), [])["bob"].outside == 0.5


def test_nobody_takes_more_of_a_gpu_than_all_of_it() -> None:
    many = [process(pid, memory_bytes=30 * GIB, sm_pct=60.0) for pid in range(1, 4)]
    charges = charges_of(snapshot(2, many), [claim(memory_bytes=60 * GIB)])

    assert (charges["alice"].gpus, charges["alice"].outside) == (1.0, 0.25)


def test_only_gpus_that_are_ours_and_answer_are_shared_out() -> None:
    limited = host(limits=Limits(visible_gpus=("0", "1")))
    gpus = [gpu(0, memory_total_bytes=40 * GIB), gpu(1, health=Health.LOST), gpu(2)]
    capacity = charging.capacity(snapshot(gpus, host=limited))

    assert (capacity.gpu_uuids, capacity.gpu_bytes) == ((gpu_uuid(0),), 40 * GIB)


def test_what_jobs_held_is_counted_to_the_second() -> None:
    held = [
        GpuUseSpan("alice", "1", 1.0, NOW - HOUR, NOW + HOUR),
        GpuUseSpan("alice", "2", 0.25, NOW + HOUR),
        GpuUseSpan("bob", "3", 1.0, NOW - 2 * HOUR, NOW - HOUR),
    ]
    seconds = charging.held_seconds(held, NOW, NOW + 2 * HOUR)

    assert seconds == pytest.approx({"alice": 3600 * 1.25})
