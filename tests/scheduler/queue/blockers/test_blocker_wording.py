from __future__ import annotations

from datetime import datetime

import pytest

from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details, from_row, title, to_row
from scheduler.facts.jobs import PriorityClass, Requirement
from scheduler.facts.people import Capacity, Quota, UserAccount
from scheduler.facts.plans import PlanPolicy, Slots
from scheduler.limits.quotas.policy.quotas import above_share
from scheduler.queue import wording as blocker_wording
from scheduler.queue.planner import blockers as stored_blockers
from scheduler.queue.planner import forecasts
from tests.builders import GIB, NOW, gpu_uuid, queued_job, slot

EIGHT = Capacity(gpu_uuids=tuple(gpu_uuid(index) for index in range(8)), gpu_bytes=80 * GIB)


def share_blocker(has: float, gib: int, share_pct: float) -> Blocker:
    account = UserAccount(
        owner="alice",
        quota=Quota(share_pct=share_pct, reserved_pct=0),
        gpus=1,
        charge=has,
        capacity=EIGHT,
    )
    return above_share(account, PriorityClass.NORMAL, has, gib / 80, 8 * share_pct / 100)


def test_every_code_has_a_sentence_and_a_condition() -> None:
    assert set(blocker_wording._TEXTS) == set(BlockerCode)
    assert set(blocker_wording._CONDITIONS) == set(BlockerCode)


def test_the_titles_of_codes_differ_and_an_unknown_code_is_its_own_title() -> None:
    assert len({title(code) for code in BlockerCode}) == len(BlockerCode)
    assert title(BlockerCode.GPU_MEMORY) == "Too little free GPU memory"
    assert title("OfAnotherVersion") == "OfAnotherVersion"


def test_a_code_without_a_title_is_refused() -> None:
    with pytest.raises(TypeError, match="title"):
        BlockerCode.__new_member__(BlockerCode, "QuietHours")


def test_groups_of_codes_are_properties_of_the_enum() -> None:
    assert BlockerCode.USER_MAX_SHARE.is_own_limit
    assert BlockerCode.PRESSURE.is_load
    assert BlockerCode.GPU_MEMORY.is_of_gpu
    assert not BlockerCode.GPU_COUNT.is_of_gpu
    assert (BlockerCode.GPU_MEMORY.bound, BlockerCode.HELD.bound) == ("memory", "other")


def test_a_blocker_is_the_same_after_it_was_stored() -> None:
    blocker = Blocker(
        code=BlockerCode.RESERVED_FOR,
        tier=Tier.NOT_YET,
        gpu=3,
        jobs=(7, 9),
        user="alice",
        requested="20 GiB",
        until=NOW,
        details=details(case="window", part="", starts=None, zone="UTC"),
    )

    assert from_row(to_row(blocker)) == blocker


def test_rest_keeps_its_words_for_gpus_jobs_and_arrays() -> None:
    on_gpu = Blocker(
        code=BlockerCode.GPU_TAKEN, gpu=3, jobs=(7, 9), details=details(case="wants alone")
    )
    after = Blocker(code=BlockerCode.DEPENDENCY, jobs=(5,), requested="end")
    array = Blocker(code=BlockerCode.DEPENDENCY, array=6, requested="success")

    bodies = [stored_blockers.body(each) for each in (on_gpu, after, array)]

    assert (bodies[0]["gpu"], bodies[0]["holder"]) == (3, "jobs 7 and 9")
    assert [each["holder"] for each in bodies[1:]] == ["job 5", "array 6"]
    assert [each["job"] for each in bodies] == [None, 5, None]


@pytest.mark.parametrize(
    "blocker",
    [
        Blocker(code=BlockerCode.GPU_TAKEN, gpu=1, jobs=(9,), details=details(case="wants alone")),
        Blocker(
            code=BlockerCode.OTHER_GPUS, available="2 too full, 1 locked", details=details(count=3)
        ),
    ],
    ids=lambda blocker: blocker.code.value,
)
def test_what_is_taken_is_not_called_available(blocker: Blocker) -> None:
    row = stored_blockers.body(blocker)
    labels = {label for label, _, _ in stored_blockers.reasons([row])[0].facts}

    assert row["available"] is None
    assert "available" not in labels


def test_another_wording_changes_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = slot(0, exclusive=True, jobs=(9,))
    until = datetime.max.replace(tzinfo=NOW.tzinfo)
    closed = slot(
        1, closed=(Blocker(code=BlockerCode.GPU_PAUSED, tier=Tier.MACHINE, gpu=1, until=until),)
    )
    slots = Slots(host="gpubox", gpus=(busy, closed))
    queue = [queued_job(1)]
    before = forecasts.forecast(queue, slots, PlanPolicy(), NOW)

    for code in BlockerCode:
        monkeypatch.setitem(blocker_wording._TEXTS, code, lambda _: "x")  # type: ignore[arg-type]

    assert forecasts.forecast(queue, slots, PlanPolicy(), NOW) == before


def test_the_figures_of_a_share_add_up() -> None:
    for has, gib, share_pct in ((0.75, 32, 12.9), (0.999, 1, 12.5), (1.0, 4, 13.0)):
        blocker = share_blocker(has, gib, share_pct)
        shown = {name: blocker.detail(name) for name in ("has", "wants", "most", "over")}
        assert shown["has"] + shown["wants"] > shown["most"]
        assert shown["over"] == pytest.approx(shown["has"] + shown["wants"] - shown["most"])
        assert shown["over"] > 0


def test_a_quota_is_named_by_its_user_and_never_as_yours() -> None:
    blocker = share_blocker(1.0, 40, 12.5)

    words = " ".join(
        [
            blocker_wording.text(blocker),
            blocker_wording.headline(blocker),
            blocker_wording.condition(blocker),
        ]
    )
    assert "alice's share" in words
    assert not {"you", "your", "yours", "my"} & set(words.lower().split())


def test_the_headline_prefers_what_holds_the_job_itself_to_single_gpus() -> None:
    paused = Blocker(code=BlockerCode.GPU_PAUSED, tier=Tier.MACHINE, gpu=1, holder="olga")
    blocker = Blocker(
        code=BlockerCode.GPU_TAKEN, gpu=0, jobs=(7,), details=details(case="wants alone")
    )
    share = share_blocker(1.0, 40, 12.5)

    def first(*blockers: Blocker) -> str:
        reasons = stored_blockers.first(
            stored_blockers.reasons(map(stored_blockers.body, blockers))
        )
        assert reasons is not None
        return reasons.code

    assert first(paused, blocker, share) == "ShareExceeded"
    assert first(paused, blocker) == "GpuTaken"
    assert first(paused) == "GpuPaused"


def test_the_headline_is_never_the_count_of_gpus_that_are_not_listed() -> None:
    reserved = Blocker(
        code=BlockerCode.RESERVED_FOR,
        tier=Tier.NOT_YET,
        gpu=0,
        holder="lab9",
        until=NOW,
        details=details(case="window", zone="UTC"),
    )
    others = Blocker(
        code=BlockerCode.OTHER_GPUS, available="4 reserved, 1 too full", details=details(count=5)
    )
    count = Blocker(
        code=BlockerCode.GPU_COUNT, requested="2 GPUs", available="0", details=details(fitting=0)
    )
    taken = Blocker(code=BlockerCode.GPU_TAKEN, gpu=1, jobs=(7,), details=details(case="exclusive"))

    def headline(*blockers: Blocker) -> str:
        rows = map(stored_blockers.body, blockers)
        main = stored_blockers.first(stored_blockers.reasons(rows))
        assert main is not None
        return main.headline

    until = f"until {NOW:%a} {NOW.day} {NOW:%b %H:%M} (UTC)"
    assert headline(reserved, others) == f"GPU 0 is reserved for lab9 {until}."
    assert headline(count, reserved, others) == f"GPU 0 is reserved for lab9 {until}."
    assert headline(count, reserved, taken, others).startswith("This job asks for 2 GPUs")
    assert headline(taken, reserved, others) == "Job 7 has GPU 1 alone."
    assert headline(others) == "5 GPUs can't take it: 4 reserved, 1 too full."


def test_a_job_that_can_never_start_has_no_position_and_no_time() -> None:
    people = {"alice": UserAccount(owner="alice", quota=Quota(gpus=2), capacity=EIGHT)}
    gpus = tuple(slot(index) for index in range(4))
    slots = Slots(host="gpubox", gpus=gpus, people=people)
    queue = [
        queued_job(1, owner="alice", requirement=Requirement(gpus=4)),
        queued_job(2, owner="bob", requirement=Requirement(gpus=9)),
    ]

    starts = forecasts.forecast(queue, slots, PlanPolicy(), NOW)

    assert {(each.never, each.position, each.p50) for each in starts.values()} == {
        (True, None, None)
    }


def test_a_users_name_is_written_as_it_is_at_the_begin_of_a_sentence() -> None:
    blocker = share_blocker(2.4, 40, 30)

    assert blocker_wording.text(blocker).startswith("alice's share allows")


def test_the_main_reason_names_a_gpu_before_it_sums_up_the_others() -> None:
    others = {"code": "OtherGpus", "text": "5 other GPUs", "tier": int(Tier.CONTENTION)}
    named = others | {"code": "BatchExclusive", "text": "Batch 1 has GPU 0", "gpu": 0}

    main = stored_blockers.first(stored_blockers.reasons([others, named]))

    assert main is not None
    assert main.text == "Batch 1 has GPU 0"


def test_a_user_reads_of_their_own_share_and_others_of_that_of_the_user() -> None:
    blocker = share_blocker(1.0, 20, 12.5)
    row = stored_blockers.body(blocker)
    (own,) = stored_blockers.addressed_to([row], "alice")
    (other,) = stored_blockers.addressed_to([row], "bob")

    assert other == row
    assert "alice's share" in row["text"]
    assert own["text"].startswith("Your share allows")
    assert "your share" in own["headline"]
    assert "one of your jobs" in own["next_step"]


@pytest.mark.parametrize(
    "text", ["malice's share is 2.", "It waits for alice's run.", "alice waits."]
)
def test_only_the_users_own_limits_are_addressed(text: str) -> None:
    assert stored_blockers.addressed(text, "alice") == text


def test_a_user_who_holds_a_job_is_addressed_as_you_and_others_by_name() -> None:
    text = "alice holds it until it is released. alice or an operator must release it."

    assert stored_blockers.addressed(text, "alice") == (
        "You hold it until it is released. You or an operator must release it."
    )
    assert stored_blockers.addressed(text, "bob") == text


@pytest.mark.parametrize(
    ("text", "requested", "available", "facts"),
    [
        ("It asks for 3 GPUs; 1 can take it now.", None, "1", []),
        ("It asks for 10 GPUs.", None, "1", [("available", "1", None)]),
        ("Its share allows 1.92.", "0.4 GPUs", "1.9", [
            ("requested", "0.4 GPUs", None), ("available", "1.9", None),
        ]),
        ("2 GPUs are busy.", None, "2", []),
    ],
)  # fmt: skip
def test_a_fact_that_the_sentence_states_is_not_repeated(
    text: str, requested: str | None, available: str, facts: list[tuple[str, str, None]]
) -> None:
    stored = {"code": "X", "text": text, "requested": requested, "available": available}

    assert stored_blockers.reasons([stored])[0].facts == facts
