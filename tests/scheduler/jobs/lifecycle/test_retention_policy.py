from __future__ import annotations

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.jobs.policy import RetainedFiles, RetentionPolicy, select_expired
from tests.builders import GIB, NOW

POLICY = RetentionPolicy()
DISK = 100 * GIB


def _kept(job_id: int, days: float, size: int | None = GIB) -> RetainedFiles:
    return RetainedFiles(job_id, NOW - timedelta(days=days), size)


def _ids(
    *kept: RetainedFiles, policy: RetentionPolicy = POLICY, disk: int | None = DISK
) -> list[int]:
    return [one.job_id for one in select_expired(kept, policy, disk, NOW)]


def test_files_go_after_their_time_measured_or_not() -> None:
    assert _ids(_kept(1, 89.9), _kept(2, 90), _kept(3, 400, None)) == [3, 2]


def test_the_oldest_go_sooner_when_all_take_too_much_of_the_disk() -> None:
    assert _ids(_kept(1, 10, 8 * GIB), _kept(2, 20, 8 * GIB), _kept(3, 30, 8 * GIB)) == [3]


def test_nothing_goes_for_its_size_in_the_first_days() -> None:
    assert _ids(_kept(1, 6.9, 90 * GIB), _kept(2, 8, GIB)) == [2]


def test_what_takes_nothing_does_not_go_for_its_size() -> None:
    assert _ids(_kept(1, 20, 0), _kept(2, 10, 90 * GIB)) == [2]


def test_an_unknown_disk_and_no_limit_set_no_limit() -> None:
    kept = _kept(1, 20, 90 * GIB)

    assert _ids(kept, disk=None) == []
    assert _ids(kept, policy=RetentionPolicy(disk_pct=100)) == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 200), st.integers(0, 60)), max_size=12))
def test_what_is_left_fits_or_is_young(ages_and_sizes: list[tuple[float, int]]) -> None:
    kept = [_kept(number, days, size * GIB) for number, (days, size) in enumerate(ages_and_sizes)]
    gone = set(_ids(*kept))

    left = [one for one in kept if one.job_id not in gone]
    old = [one for one in left if one.size and NOW - one.ended_at >= timedelta(days=7)]
    assert not old or sum(one.size or 0 for one in left) <= 0.2 * DISK
    assert all(NOW - one.ended_at < timedelta(days=90) for one in left)
