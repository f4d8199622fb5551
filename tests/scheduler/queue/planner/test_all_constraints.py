"""Each GPU is explained by every constraint that holds now, and the decisive one leads."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scheduler.facts.blockers import Blocker, BlockerCode, Tier
from scheduler.facts.jobs import Requirement
from scheduler.facts.people import Capacity, Quota, UserAccount
from scheduler.facts.plans import Holder, PlanPolicy, Slot, Slots, Throttle
from scheduler.queue.planner import blockers as stored_blockers
from scheduler.queue.planner.blockers import Reason
from scheduler.queue.planner.matching import reject_code, rejections
from scheduler.queue.planner.order import Shares
from scheduler.queue.planner.plan import plan
from scheduler.queue.wording import text
from tests.builders import GIB, NOW, gpu_uuid, queued_job, slot

POLICY = PlanPolicy()
DANA = Holder(name="dana/python", memory_bytes=71 * GIB, user="dana", pid=4711)
EIGHT = Capacity(gpu_uuids=tuple(gpu_uuid(index) for index in range(8)), gpu_bytes=80 * GIB)


def alice(**changes: Any) -> UserAccount:
    facts: dict[str, Any] = {"quota": Quota(share_pct=30, reserved_pct=20), "capacity": EIGHT}
    return UserAccount(owner="alice", **(facts | changes))


def of_job(requirement: Requirement, gpus: list[Slot], **world: Any) -> tuple[Blocker, ...]:
    """Why alice's job 1 waits."""
    people = {"alice": alice()}
    slots = Slots(host="gpubox", gpus=tuple(gpus), **({"people": people} | world))
    queue = [
        queued_job(1, owner="alice", requirement=requirement),
        queued_job(2, owner="bob", priority=2, requirement=Requirement(gpus=8, exclusive=True)),
    ]
    return plan(queue, slots, POLICY, NOW).blockers[1]


def leading(blockers: tuple[Blocker, ...]) -> Reason:
    main = stored_blockers.first(stored_blockers.reasons(map(stored_blockers.body, blockers)))
    assert main is not None
    return main


def loaded_gpu_4() -> list[Slot]:
    """GPU 4 is full of memory that is held outside the queue, and loaded by other users."""
    return [
        slot(index, free_bytes=8 * GIB, foreign=(DANA,)) if index == 4 else slot(index)
        for index in range(8)
    ]


PINNED = Requirement(memory_bytes=32 * GIB, gpu_uuid=gpu_uuid(4))
LOAD = Throttle(multipliers={gpu_uuid(4): 0.1}, reason="load of other users")


def test_memory_held_outside_the_queue_is_named_beside_the_load_of_the_pinned_gpu() -> None:
    blockers = of_job(PINNED, loaded_gpu_4(), throttle=LOAD)

    assert {blocker.code for blocker in blockers} == {
        BlockerCode.GPU_MEMORY,
        BlockerCode.SHARE_REDUCED,
    }
    (memory,) = (each for each in blockers if each.code is BlockerCode.GPU_MEMORY)
    assert (memory.gpu, memory.holder, memory.requested) == (4, "dana/python", "32 GiB")
    assert memory.detail("outside_bytes") == 71 * GIB
    assert "dana/python (PID 4711) holds 71 GiB" in text(memory)


def test_held_memory_leads_before_a_load_that_changes_within_minutes() -> None:
    main = leading(of_job(PINNED, loaded_gpu_4(), throttle=LOAD))

    assert main.headline == (
        "GPU 4 has less than 32 GiB of memory free; dana/python (PID 4711) holds 71 GiB."
    )


def test_no_sentence_about_a_pinned_job_speaks_of_other_gpus() -> None:
    blockers = of_job(PINNED, loaded_gpu_4(), throttle=LOAD)

    assert {blocker.gpu for blocker in blockers} == {4}
    assert "No GPU" not in leading(blockers).headline


def test_the_order_of_users_is_no_reason_where_no_job_holds_the_gpu() -> None:
    """Above the share, alice's job is served after bob's; neither could use GPU 4."""
    people = {"alice": alice(charge=2.4), "bob": UserAccount(owner="bob", capacity=EIGHT)}

    codes = {each.code for each in of_job(PINNED, loaded_gpu_4(), people=people)}

    assert codes == {BlockerCode.GPU_MEMORY}


def test_a_gpu_of_a_job_leads_before_gpus_that_processes_outside_the_queue_load() -> None:
    """Five GPUs are too many to list; the job on GPU 4 ends, of the load nobody knows."""
    gpus = [slot(index, free_bytes=14 * GIB, foreign=(DANA,)) for index in range(4)]
    gpus.append(slot(4, jobs=(9,), held_bytes=(0,), undeclared=True))
    loads = Throttle(multipliers=dict.fromkeys(map(gpu_uuid, range(4)), 0.1), reason="load")

    main = leading(of_job(Requirement(memory_bytes=12 * GIB), gpus, throttle=loads))

    assert main.headline.startswith("Job 9 on GPU 4 did not declare GPU memory")


def test_all_gpus_without_memory_are_summed_up_in_one_headline() -> None:
    gpus = [slot(index, free_bytes=8 * GIB, foreign=(DANA,)) for index in range(2)]

    main = leading(of_job(Requirement(memory_bytes=32 * GIB), gpus))

    assert main.headline == "No GPU has 32 GiB of memory free."


def test_memory_is_not_missing_on_all_gpus_where_one_is_taken_for_another_reason() -> None:
    closed = Blocker(code=BlockerCode.GPU_PAUSED, tier=Tier.MACHINE, gpu=1, holder="olga")
    gpus = [slot(0, free_bytes=8 * GIB, foreign=(DANA,)), slot(1, closed=(closed,))]

    main = leading(of_job(Requirement(memory_bytes=32 * GIB), gpus))

    assert main.headline.startswith("GPU 0 has less than 32 GiB")


def test_a_paused_gpu_that_a_job_holds_has_both_reasons() -> None:
    closed = Blocker(code=BlockerCode.GPU_PAUSED, tier=Tier.MACHINE, gpu=0, holder="olga")
    taken = slot(0, jobs=(9,), held_bytes=(0,), exclusive=True, closed=(closed,))

    codes = [each.code for each in rejections(Requirement(exclusive=True), taken, POLICY)]

    assert codes == [BlockerCode.GPU_PAUSED, BlockerCode.GPU_TAKEN]


def test_memory_that_a_taken_gpu_gives_back_is_no_further_reason() -> None:
    taken = slot(0, jobs=(9,), held_bytes=(70 * GIB,), free_bytes=9 * GIB, exclusive=True)

    (only,) = rejections(Requirement(memory_bytes=32 * GIB), taken, POLICY)

    assert only.code is BlockerCode.GPU_TAKEN


def test_jobs_and_processes_that_share_a_gpu_both_keep_it_from_a_job_that_wants_it_alone() -> None:
    shared = slot(0, jobs=(9,), held_bytes=(GIB,), foreign=(DANA,), free_bytes=7 * GIB)

    holders = [(each.jobs, each.holder) for each in rejections(Requirement(exclusive=True), shared,
                                                               POLICY)]  # fmt: skip

    assert holders == [((9,), None), ((), "dana/python")]


def test_an_excess_below_a_hundredth_of_a_gpu_is_not_given_as_a_reason() -> None:
    """alice holds 1.5 GPUs and asks for another."""

    def above(target_gpus: float) -> Blocker | None:
        account = alice(quota=Quota(share_pct=30, reserved_pct=0), gpus=2, charge=1.5,
                        target=target_gpus / 8)  # fmt: skip
        slots = Slots(host="gpubox", people={"alice": account})
        job = Requirement(exclusive=True)
        return Shares(slots, {"alice", "bob"}).above("alice", 3, job, {"alice", "bob"})

    exceeded = above(2.48)
    assert exceeded is not None
    assert exceeded.detail("over") == 0.02
    assert above(2.497) is None


@st.composite
def gpus(draw: st.DrawFn) -> Slot:
    jobs = draw(st.sampled_from([(), (9,), (8, 9)]))
    closed = Blocker(code=BlockerCode.GPU_PAUSED, tier=Tier.MACHINE, gpu=0)
    return slot(
        0,
        free_bytes=draw(st.sampled_from([None, 0, GIB, 40 * GIB, 80 * GIB])),
        healthy=draw(st.booleans()),
        jobs=jobs,
        held_bytes=tuple(GIB for _ in jobs),
        exclusive=bool(jobs) and draw(st.booleans()),
        undeclared=bool(jobs) and draw(st.booleans()),
        foreign=draw(st.sampled_from([(), (DANA,)])),
        closed=draw(st.sampled_from([(), (closed,)])),
        reserved_for=draw(st.sampled_from([None, 3])),
        batch=draw(st.sampled_from([None, 5])),
        ramping=draw(st.sampled_from([None, 9])) if jobs else None,
        heavy_bytes=24 * GIB,
    )


REQUESTS = st.builds(
    Requirement,
    memory_bytes=st.sampled_from([None, GIB, 32 * GIB, 90 * GIB]),
    exclusive=st.booleans(),
    batch=st.sampled_from([None, 5]),
    gpu_uuid=st.sampled_from(["", gpu_uuid(0), gpu_uuid(1)]),
)


@given(gpus(), REQUESTS)
def test_the_constraints_are_complete_for_every_gpu_and_begin_with_the_verdict(
    gpu: Slot, requirement: Requirement
) -> None:
    codes = [blocker.code for blocker in rejections(requirement, gpu, POLICY)]

    assert codes[:1] == [code for code in [reject_code(requirement, gpu, POLICY)] if code]
