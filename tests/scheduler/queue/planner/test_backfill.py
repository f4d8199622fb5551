from __future__ import annotations

from datetime import timedelta

from scheduler.facts.blockers import Blocker, BlockerCode, Tier
from scheduler.facts.jobs import PriorityClass
from scheduler.facts.plans import Plan
from tests.builders import NOW
from tests.scheduler.placing import Case

BUSY = Blocker(code=BlockerCode.PRESSURE, tier=Tier.MACHINE)
HOUR = timedelta(hours=1)


def _pair(**runs: float | None) -> Case:
    """GPU a is taken for two hours more, b is free; job 1 wants both."""
    case = Case().gpu("a").gpu("b")
    return case.runs(9, "a", **({"lasts_h": 3.0} | runs)).job(1, gpus=2, exclusive=True)


def test_a_job_that_ends_in_time_goes_ahead_of_one_that_must_wait() -> None:
    _pair().job(2, time_limit=2 * HOUR).expect(b=[2], waiting={1: "GpuCount"})


def test_a_job_that_might_still_run_does_not() -> None:
    case = _pair().job(2, time_limit=3 * HOUR)

    case.expect(waiting={1: "GpuCount", 2: "ReservedFor"})
    assert case.why(2)[0] == (
        "GPU 1 is reserved for job 1, which is served first: "
        "this job might still run when that job can start."
    )


def test_a_job_of_unknown_length_does_not() -> None:
    case = _pair().job(2)

    case.expect(waiting={1: "GpuCount", 2: "ReservedFor"})
    assert case.plan().blockers[2][0].until == NOW + 2 * HOUR


def test_what_its_owner_s_jobs_usually_take_counts_where_there_is_no_limit() -> None:
    _pair().job(2, usual=HOUR).expect(b=[2], waiting={1: "GpuCount"})


def test_it_goes_ahead_on_gpus_that_are_not_promised() -> None:
    case = _pair().gpu("c", free="10GiB", held_by=("bob/python",)).job(2, wants="5GiB")

    case.expect(c=[2], waiting={1: "GpuCount"})


def test_it_goes_beside_where_there_is_room_for_both() -> None:
    case = Case().gpu("a", free="60GiB", total="80GiB").runs(9, "a", takes="50GiB", lasts_h=2)
    case.job(1, wants="40GiB").job(2, wants="5GiB").job(3, wants="5GiB")

    # Of the 60 GiB that will be free, 40 are promised; 10 are free now.
    case.job(4, wants="1GiB").expect(a=[2, 3], waiting={1: "GpuMemory", 4: "GpuMemory"})


def test_it_promises_to_the_first_alone() -> None:
    case = _pair().job(2, gpus=2, exclusive=True, time_limit=HOUR).job(3, time_limit=2 * HOUR)

    case.expect(b=[3], waiting={1: "GpuCount", 2: "GpuCount"})


def test_where_nobody_knows_the_moment_short_jobs_go_ahead_for_a_while() -> None:
    def case(waited_min: float) -> Case:
        made = Case().gpu("a").gpu("b").runs(9, "a")
        made.job(1, gpus=2, exclusive=True, after_s=-60 * waited_min)
        return made.job(2, time_limit=HOUR)

    case(59).expect(b=[2], waiting={1: "GpuCount"})
    case(60).expect(waiting={1: "GpuCount", 2: "ReservedFor"})


def test_a_job_that_is_late_may_stay_for_ever() -> None:
    _pair(lasts_h=0.5).job(2).expect(waiting={1: "GpuCount", 2: "ReservedFor"})


def test_nothing_is_promised_to_who_would_not_fit_in_an_empty_machine() -> None:
    case = Case().gpu("a", free="10GiB", held_by=("bob/python",)).gpu("b")

    case.job(1, gpus=2, exclusive=True).job(2).expect(b=[2], waiting={1: "GpuCount"})


def test_a_job_does_not_wait_for_its_own_promise() -> None:
    reasons = _pair().plan().blockers[1]

    assert "ReservedFor" not in {reason.code for reason in reasons}


def _preempted(plan: Plan) -> list[tuple[int, int | None]]:
    return [(preemption.job_id, preemption.for_job) for preemption in plan.preemptions]


def test_a_more_important_job_makes_one_leave_that_may_be_interrupted() -> None:
    case = Case().gpu("a").gpu("b").runs(8, "a").runs(9, "b", priority=1, preemptible=True)

    assert _preempted(case.job(1, priority=5).plan()) == [(9, 1)]


def test_nobody_leaves_for_a_job_that_its_limits_keep_back() -> None:
    case = Case().gpu("a").runs(9, "a", priority=1, preemptible=True)
    case.throttled(closed={PriorityClass.NORMAL: BUSY})

    assert _preempted(case.job(1, priority=3).plan()) == []


def test_nobody_leaves_twice_for_the_same_job() -> None:
    case = Case().gpu("a", reserved_for=1).runs(9, "a", priority=1, preemptible=True)

    assert _preempted(case.job(1, priority=5).plan()) == []


def test_two_jobs_make_two_leave() -> None:
    case = Case().gpu("a").gpu("b")
    for id_, name in ((8, "a"), (9, "b")):
        case.runs(id_, name, priority=1, preemptible=True)
    case.job(1, priority=5).job(2, priority=5)

    preempted = _preempted(case.plan())
    assert sorted(job for job, _ in preempted) == [8, 9]
    assert [beneficiary for _, beneficiary in preempted] == [1, 2]


def test_who_was_kept_back_by_a_promise_is_told_though_others_now_make_room_for_it() -> None:
    """Job 1 was promised c, which ends, and the free a or b; it gets d, whose job leaves."""
    case = Case().gpu("a").gpu("b").gpu("c").gpu("d")
    case.runs(8, "c", lasts_h=2, priority=5).runs(9, "d", priority=1, preemptible=True)
    case.job(1, gpus=3, exclusive=True, priority=5).job(2, priority=3).job(3, priority=3)

    made = case.plan()
    assert [preemption.job_id for preemption in made.preemptions] == [9]
    assert all(made.blockers[waiting] for waiting in (1, 2, 3))
