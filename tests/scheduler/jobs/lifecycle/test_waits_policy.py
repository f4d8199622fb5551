from __future__ import annotations

from datetime import timedelta
from typing import Any

from scheduler.facts.blockers import Tier
from scheduler.facts.jobs import DependencyKind
from scheduler.jobs.policy import Condition, waits
from scheduler.queue.wording import text
from tests.builders import NOW

HOUR = timedelta(hours=1)


def _codes(*conditions: Condition, placed: dict[int, int] | None = None) -> dict[int, list[str]]:
    by_job = waits(conditions, placed or {}, NOW)
    return {job: [one.code for one in blockers] for job, blockers in by_job.items()}


def _one(id: int = 1, **facts: Any) -> Condition:
    return Condition(id=id, **facts)


def test_a_held_job_needs_a_person() -> None:
    (blocker,) = waits([_one(held="bob holds it.", held_by="bob")], {}, NOW)[1]

    assert (blocker.code, blocker.tier, blocker.holder) == ("Held", Tier.PERSON, "bob")
    assert text(blocker) == "bob holds it."


def test_what_gpucoord_holds_itself_yielded_too_often() -> None:
    assert _codes(_one(held="It yielded 5 times.")) == {1: ["TooManyRequeues"]}


def test_it_waits_until_its_begin_time_and_no_longer() -> None:
    assert _codes(_one(begin_at=NOW + HOUR)) == {1: ["BeginTime"]}
    assert _codes(_one(begin_at=NOW)) == {}


def test_it_says_when_the_pause_after_a_failure_ends() -> None:
    (blocker,) = waits([_one(retry_at=NOW + HOUR, failures=2)], {}, NOW)[1]

    assert (blocker.code, blocker.until) == ("Backoff", NOW + HOUR)
    assert "failed 2 times" in text(blocker)


def test_it_names_each_job_that_it_waits_for() -> None:
    blockers = waits(
        [_one(pending=((7, DependencyKind.END), (9, DependencyKind.SUCCESS)))], {}, NOW
    )[1]

    assert [one.job for one in blockers] == [7, 9]
    assert [text(one) for one in blockers] == [
        "It starts after job 7 has ended.",
        "It starts after job 9 has succeeded.",
    ]


def test_it_says_that_it_waits_for_a_whole_array() -> None:
    condition = _one(pending=((7, DependencyKind.SUCCESS),), arrays=frozenset({7}))

    (blocker,) = waits([condition], {}, NOW)[1]

    assert text(blocker) == "It starts after all jobs of array 7 have succeeded."
    assert blocker.array == 7


def test_an_array_starts_no_more_than_its_limit() -> None:
    array = [_one(id_, array=3, array_limit=2) for id_ in (5, 4, 3)]

    assert _codes(*array) == {5: ["ArrayLimit"]}
    assert _codes(*array, placed={3: 1}) == {4: ["ArrayLimit"], 5: ["ArrayLimit"]}
    assert list(_codes(*array, placed={3: 9})) == [3, 4, 5]


def test_who_waits_for_something_else_takes_no_place_of_its_array() -> None:
    held = _one(3, array=3, array_limit=1, held="bob holds it.", held_by="bob")
    free = _one(4, array=3, array_limit=1)

    assert _codes(held, free) == {3: ["Held"]}


def test_many_jobs_share_one_reason() -> None:
    blockers = waits([_one(id_, array=1, array_limit=1) for id_ in range(1, 5)], {1: 1}, NOW)

    assert blockers[2] is blockers[3] is blockers[4]
