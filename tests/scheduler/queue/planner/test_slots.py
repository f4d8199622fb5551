"""A GPU after some of its jobs have left it, as backfill, forecast and preemption see it."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from scheduler.facts.plans import Holder, Slot
from tests.builders import GIB, NOW, slot


def two_jobs(**changes: object) -> Slot:
    facts: dict[str, object] = {
        "total_bytes": 80 * GIB,
        "free_bytes": 30 * GIB,
        "jobs": (1, 2),
        "held_bytes": (20 * GIB, 30 * GIB),
    }
    return slot(0, **(facts | changes))


def test_the_memory_of_a_job_that_leaves_is_free() -> None:
    after = two_jobs().without({1})

    assert (after.jobs, after.held_bytes, after.free_bytes) == ((2,), (30 * GIB,), 50 * GIB)


def test_a_gpu_stays_exclusive_while_any_job_stays() -> None:
    """Which of them asked for it is not known: a claim may be older than the reading."""
    before = two_jobs(exclusive=True, undeclared=True)

    assert (before.without({1}).exclusive, before.without({1}).undeclared) == (True, True)
    assert (before.without({1, 2}).exclusive, before.without({1, 2}).undeclared) == (False, False)


def test_a_heavy_start_is_over_when_that_job_leaves() -> None:
    before = two_jobs(ramping=1, ramps_until=NOW + timedelta(minutes=1))

    assert (before.without({1}).ramping, before.without({1}).ramps_until) == (None, None)
    assert before.without({2}).ramping == 1


def test_memory_that_a_job_is_not_known_to_hold_is_not_given_back() -> None:
    before = two_jobs(held_bytes=(20 * GIB,))

    assert before.without({2}).free_bytes == 30 * GIB
    assert before.without({2}).held_bytes == (20 * GIB,)


def test_unknown_free_memory_stays_unknown() -> None:
    assert two_jobs(free_bytes=None).without({1, 2}).free_bytes is None


def test_an_overcommitted_gpu_never_gets_more_than_others_leave() -> None:
    """Free memory is clamped at zero, so giving all of a job's part back would be too much."""
    foreign = (Holder(name="eve/python", memory_bytes=50 * GIB),)
    before = two_jobs(free_bytes=0, foreign=foreign)

    assert before.without({1}).free_bytes == 0
    assert before.without({1, 2}).free_bytes == 30 * GIB


def test_a_gpu_that_nobody_leaves_is_the_same() -> None:
    before = two_jobs()

    assert before.without({7}) is before


def test_an_empty_gpu_is_settled() -> None:
    assert not two_jobs(unsettled=True).without({1, 2}).unsettled
    assert two_jobs(unsettled=True).without({1}).unsettled


@given(st.lists(st.integers(0, 40), max_size=5), st.sets(st.integers(0, 4)), st.integers(0, 80))
def test_leaving_one_by_one_is_leaving_together(held: list[int], gone: set[int], free: int) -> None:
    before = two_jobs(
        jobs=tuple(range(len(held))),
        held_bytes=tuple(part * GIB for part in held),
        free_bytes=free * GIB,
    )
    one_by_one = before
    for job in sorted(gone):
        one_by_one = one_by_one.without({job})

    together = before.without(gone)
    assert together.jobs == one_by_one.jobs
    if sum(held) <= 80:
        assert together == one_by_one
