from __future__ import annotations

from scheduler.facts.blockers import Blocker, BlockerCode, Tier
from scheduler.facts.jobs import PriorityClass
from scheduler.facts.people import Capacity, Quota
from tests.builders import GIB, gpu_uuid
from tests.scheduler.placing import Case

BUSY = Blocker(code=BlockerCode.PRESSURE, tier=Tier.MACHINE)
HELD = Blocker(code=BlockerCode.HELD, tier=Tier.PERSON)
OWNER = Blocker(code=BlockerCode.OWNER_PRESENT, tier=Tier.MACHINE)


def test_it_starts_no_job_of_a_closed_class() -> None:
    case = Case().gpu("a").gpu("b").throttled(closed={PriorityClass.BACKGROUND: BUSY})

    case.job(1, priority=1).job(2, priority=3).expect(a=[2], waiting={1: "Pressure"})


def test_it_puts_as_many_jobs_beside_others_as_the_utilisation_allows() -> None:
    case = Case().gpu("a", jobs=(7,)).throttled(starts=1, target="91 % are used.")
    case.job(1, wants="1GiB").job(2, wants="1GiB").job(3, gpus=0)

    case.expect(a=[1], cpu=[3], waiting={2: "UtilTarget"})
    assert case.why(2) == ["No job joins the others on GPU 0 now: 91 % are used."]


def test_an_empty_gpu_takes_a_job_whatever_the_others_do() -> None:
    case = Case().gpu("a", jobs=(7,)).gpu("b").throttled(starts=0)
    case.job(1, wants="1GiB").job(2).job(3, wants="1GiB")

    case.expect(b=[1], waiting={2: "UtilTarget", 3: "UtilTarget"})


def test_whoever_sits_and_waits_is_not_kept_by_the_utilisation() -> None:
    case = Case().gpu("a", jobs=(7,)).throttled(starts=0)
    case.job(1, priority=3, wants="1GiB").job(2, priority=4, wants="1GiB")

    case.expect(a=[2], waiting={1: "UtilTarget"})


def test_a_busy_gpu_takes_only_user_initiated_jobs() -> None:
    case = Case().gpu("a", held_by=("bob/python",))
    case.throttled(closed_gpus={PriorityClass.NORMAL: {gpu_uuid(0): BUSY}})
    case.job(1, priority=3, wants="1GiB").expect(waiting={1: "Pressure"})
    case.job(2, priority=4, wants="1GiB").expect(a=[2], waiting={1: "Pressure"})


def test_a_gpu_that_was_busy_and_is_empty_now_takes_any_job() -> None:
    case = Case().gpu("a").throttled(closed_gpus={PriorityClass.NORMAL: {gpu_uuid(0): BUSY}})
    case.job(1, priority=3).expect(a=[1])


def test_a_gpu_that_a_job_has_for_itself_is_taken_and_not_busy() -> None:
    case = Case().gpu("a", jobs=(7,), exclusive=True)
    case.throttled(starts=0, closed_gpus={PriorityClass.NORMAL: {gpu_uuid(0): BUSY}})
    case.job(1, wants="1GiB").expect(waiting={1: "GpuTaken"})


def test_it_leaves_a_job_alone_that_waits_for_something_else() -> None:
    case = Case().gpu("a").job(1, waits=(HELD,)).job(2)

    case.expect(a=[2], waiting={1: "Held"})


def test_it_tells_a_held_job_what_else_is_in_its_way() -> None:
    case = Case().gpu("a").job(1, waits=(HELD,)).job(2)

    assert [reason.code for reason in case.plan().blockers[1]] == ["Held", "GpuTaken"]


def test_it_spares_a_closed_gpu() -> None:
    case = Case().gpu("a", closed=(OWNER,)).gpu("b")

    case.job(1).job(2).expect(b=[1], waiting={2: "OwnerPresent"})


def test_it_keeps_what_was_freed_for_a_job() -> None:
    case = Case().gpu("a", reserved_for=2).job(1, priority=5).job(2, priority=4)

    case.expect(a=[2], waiting={1: "ReservedFor"})


def test_what_was_freed_for_a_job_is_given_to_no_other_in_the_same_pass() -> None:
    case = Case().gpu("a", reserved_for=2).job(1, priority=5, wants="9GiB")

    case.job(2, priority=4, wants="9GiB").expect(a=[2], waiting={1: "ReservedFor"})


def test_it_names_the_job_for_which_a_gpu_is_kept() -> None:
    case = Case().gpu("a", reserved_for=9).job(1)

    case.expect(waiting={1: "ReservedFor"})
    assert case.why(1) == ["GPU 0 was freed for job 9 and is reserved for it."]


def test_it_names_the_most_telling_reason_first() -> None:
    case = Case().gpu("a", jobs=(7,)).throttled(closed={PriorityClass.NORMAL: BUSY}, starts=0)

    assert [reason.code for reason in case.job(1).plan().blockers[1]] == [
        "Pressure",
        "UtilTarget",
        "GpuTaken",
    ]


def test_it_counts_what_the_pass_has_given_against_the_limits() -> None:
    case = Case().gpu("a").gpu("b").person("alice", quota=Quota(gpus=1)).job(1).job(2)

    case.expect(a=[1], waiting={2: "UserMaxGpus"})


def _half_used() -> Case:
    """Alice has one of two GPUs, which is all her share, and wants the other one too."""
    case = Case().gpu("a").gpu("b").runs(9, "a", owner="alice")
    case.person(
        "alice",
        quota=Quota(share_pct=60, reserved_pct=0),
        capacity=Capacity(gpu_uuids=(gpu_uuid(0), gpu_uuid(1)), gpu_bytes=80 * GIB),
        gpus=1,
        charge=1.0,
        target=0.6,
        # It had more than its part of the rest lately.
        owed=-0.5,
    )
    return case.job(1, owner="alice")


def test_a_job_above_its_owners_share_follows_a_user_below_the_share() -> None:
    case = _half_used().person("bob", target=0.4).job(2, owner="bob", priority=1)

    case.expect(b=[2], waiting={1: "ShareExceeded"})
    assert case.why(1)[0] == (
        "alice's share allows 1.2 of 2 GPUs for normal jobs while other users wait;"
        " 1 is in use, and this job takes 1."
    )


def test_a_share_does_not_keep_a_gpu_idle_that_no_other_user_can_take() -> None:
    case = _half_used().job(2, owner="bob", kind={"gpu_uuid": gpu_uuid(0)})

    case.expect(b=[1], waiting={2: "GpuTaken"})


def test_who_asks_for_what_is_not_here_keeps_nobody_to_their_share() -> None:
    case = _half_used().job(2, owner="bob", kind={"gpu_uuid": "GPU-9"})

    case.expect(b=[1], waiting={2: "Infeasible"})


def test_who_is_kept_by_their_own_limits_keeps_nobody_to_their_share() -> None:
    case = _half_used().person("bob", quota=Quota(gpus=0)).job(2, owner="bob")

    case.expect(b=[1], waiting={2: "UserMaxGpus"})
