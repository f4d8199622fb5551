from __future__ import annotations

from datetime import timedelta

from monitor.facts.accounts import ClaimKind
from monitor.facts.incidents import CLAIMED_EMPTY, EXTRA_GPUS, OVER_MEMORY, UNCLAIMED, UNUSED_GPUS
from monitor.facts.readings import ProcessReading
from tests.builders import GIB, NOW, claim, gpu, process
from tests.monitor.hog_traces import Trace, policies


def of_job(ref: str = "4", **changes: object) -> ProcessReading:
    return process(**{"job_ref": ref, "job_owner": "alice", "sm_pct": 90.0} | changes)


def test_a_booked_gpu_without_a_process_is_reported_after_a_while() -> None:
    trace = Trace(claims=[claim("4", since=NOW)]).play(16, lambda minute: [])
    assert trace.told == [(15.0, "opened", CLAIMED_EMPTY)]
    assert trace.texts[CLAIMED_EMPTY] == (
        "Booked but empty: job 4 (alice) has had no process on GPU 0 for 16 min"
    )


def test_a_job_that_comes_to_its_gpu_ends_it() -> None:
    trace = Trace(claims=[claim("4", since=NOW)])
    trace.play(20, lambda minute: []).play(6, lambda minute: [of_job()])
    assert trace.opened == trace.closed == [CLAIMED_EMPTY]


def test_a_booked_gpu_with_an_unknown_process_does_not_count_as_empty() -> None:
    trace = Trace(claims=[claim("4", since=NOW)])
    trace.play(30, lambda minute: [process(user=None, sm_pct=20.0)])
    assert trace.told == []


def test_a_booking_that_was_unobserved_for_long_does_not_count_as_empty() -> None:
    trace = Trace(claims=[claim("4", since=NOW)])
    trace.play(2, lambda minute: [])
    trace.play(20, lambda minute: [process(user=None, sm_pct=20.0)])
    trace.play(5, lambda minute: [])
    assert trace.told == []


def test_a_gap_between_snapshots_is_not_empty_time_and_a_short_one_changes_nothing() -> None:
    trace = Trace(claims=[claim("4", since=NOW)])
    trace.play(1, lambda minute: [])
    trace.at += timedelta(minutes=20)
    trace.play(5, lambda minute: [])
    assert trace.told == []
    trace = Trace(claims=[claim("4", since=NOW)])
    trace.play(10, lambda minute: [])
    trace.at += timedelta(minutes=2)
    trace.play(5, lambda minute: [])
    assert [round(f.coverage or 0, 2) for f in trace.found] == [0.87]
    assert trace.opened == [CLAIMED_EMPTY]


def test_an_empty_booking_stays_open_while_its_processes_are_unknown() -> None:
    trace = Trace(claims=[claim("4", since=NOW)]).play(20, lambda minute: [])
    trace.play(10, lambda minute: [process(user=None, sm_pct=20.0)])
    assert trace.closed == []
    trace.play(6, lambda minute: [of_job()])
    assert trace.closed == [CLAIMED_EMPTY]


def test_a_gpu_is_unused_only_as_far_as_that_is_known() -> None:
    booked = [claim("4", on=on, since=NOW) for on in range(2)]
    trace = Trace(gpus=2, claims=booked, every_s=30)
    trace.play(25, lambda minute: [of_job(), process(9, on=1, user=None)])
    trace.play(10, lambda minute: [of_job()])
    assert trace.told == []


def test_a_gpu_is_no_extra_one_for_a_moment_s_memory() -> None:
    trace = Trace(gpus=2, claims=[claim("4", on=0)])
    trace.play(20, lambda minute: [of_job(), of_job(on=1, memory_bytes=GIB // 2, sm_pct=0.0)])
    trace.play(0.5, lambda minute: [of_job(), of_job(on=1, memory_bytes=5 * GIB, sm_pct=0.0)])
    assert trace.told == []


def test_a_gpu_that_is_locked_from_outside_is_no_booking() -> None:
    lock = claim("lock-77-1", since=NOW, kind=ClaimKind.LOCK)
    trace = Trace(claims=[lock]).play(30, lambda minute: [])
    assert trace.told == []


def test_a_job_with_four_gpus_that_uses_one_is_reported_for_the_others() -> None:
    booked = [claim("4", on=on, since=NOW) for on in range(4)]
    trace = Trace(gpus=4, claims=booked, every_s=30)
    trace.play(32, lambda minute: [of_job(), of_job(on=1, sm_pct=0.5)])
    assert trace.opened == [UNUSED_GPUS]
    assert trace.texts[UNUSED_GPUS].startswith(
        "Booked GPUs idle: job 4 (alice) has used at most 0.5 % of each of GPUs 1, 2 and 3 in the"
    )


def test_a_job_that_uses_all_its_gpus_is_fine() -> None:
    booked = [claim("4", on=on, since=NOW) for on in range(2)]
    trace = Trace(gpus=2, claims=booked, every_s=30)
    trace.play(60, lambda minute: [of_job(), of_job(pid=2, on=1)])
    assert trace.told == []


def test_a_job_with_more_memory_than_requested_is_reported() -> None:
    trace = Trace(claims=[claim("4", memory_bytes=10 * GIB)])
    trace.play(6, lambda minute: [of_job(memory_bytes=16 * GIB)])
    assert trace.opened == [OVER_MEMORY]
    assert "holds 16.0 GiB on GPU 0" in trace.texts[OVER_MEMORY]
    assert "it requested 10.0 GiB" in trace.texts[OVER_MEMORY]


def test_a_model_with_more_memory_than_it_was_placed_with_is_reported_by_its_name() -> None:
    placed = claim("4", memory_bytes=20 * GIB, kind=ClaimKind.LLM, task="qwen2.5:7b", phase="ready")
    trace = Trace(claims=[placed])
    trace.play(6, lambda minute: [of_job(memory_bytes=26 * GIB)])
    assert trace.opened == [OVER_MEMORY]
    assert trace.texts[OVER_MEMORY].startswith(
        "More memory than booked: model qwen2.5:7b (job 4) holds 26.0 GiB on GPU 0"
    )
    assert "it requested 20.0 GiB" in trace.texts[OVER_MEMORY]


def test_a_model_within_its_placed_memory_is_fine() -> None:
    placed = claim("4", memory_bytes=20 * GIB, kind=ClaimKind.LLM, task="qwen2.5:7b", phase="ready")
    trace = Trace(claims=[placed]).play(20, lambda minute: [of_job(memory_bytes=20 * GIB)])
    assert trace.told == []


def test_a_sleeping_model_has_no_empty_booking() -> None:
    asleep = claim("4", since=NOW, kind=ClaimKind.LLM, task="qwen2.5:7b", phase="sleeping")
    assert Trace(claims=[asleep]).play(60, lambda minute: []).told == []


def test_a_job_that_has_its_gpu_alone_may_take_all_of_it() -> None:
    alone = claim("4", memory_bytes=10 * GIB, exclusive=True)
    trace = Trace(claims=[alone]).play(20, lambda minute: [of_job(memory_bytes=70 * GIB)])
    assert trace.told == []


def test_a_job_on_a_gpu_that_it_has_not_booked_is_reported() -> None:
    trace = Trace(gpus=2, claims=[claim("4", on=0)])
    trace.play(6, lambda minute: [of_job(), of_job(on=1, memory_bytes=5 * GIB, sm_pct=40.0)])
    assert trace.opened == [EXTRA_GPUS]


def test_the_small_context_that_drivers_open_on_each_gpu_is_no_extra_gpu() -> None:
    trace = Trace(gpus=2, claims=[claim("4", on=0)])
    trace.play(20, lambda minute: [of_job(), of_job(on=1, memory_bytes=GIB // 2, sm_pct=0.0)])
    assert trace.told == []


def test_use_outside_the_queue_is_reported_only_where_all_use_must_be_booked() -> None:
    def some(minute: float) -> list[ProcessReading]:
        return [process(sm_pct=30.0, memory_bytes=8 * GIB)]

    assert Trace().play(15, some).told == []
    told = Trace(policies(unclaimed_on=True)).play(15, some)
    assert told.opened == [UNCLAIMED]
    assert told.known[0].severity == "info"


def test_use_outside_the_queue_with_low_coverage_is_not_reported() -> None:
    trace = Trace(policies(unclaimed_on=True), every_s=30)
    trace.play(
        110,
        lambda minute: [process(sm_pct=60.0 if minute % 10 < 7 else None, memory_bytes=None)],
    )
    assert trace.told == []


def test_short_memory_use_outside_the_queue_is_not_reported() -> None:
    trace = Trace(policies(unclaimed_on=True))
    trace.play(15, lambda minute: [process(sm_pct=0.0, memory_bytes=GIB // 2)])
    trace.play(0.5, lambda minute: [process(sm_pct=0.0, memory_bytes=4 * GIB)])
    assert trace.told == []


def test_little_memory_with_many_gpu_minutes_outside_the_queue_is_reported() -> None:
    trace = Trace(policies(unclaimed_on=True), every_s=30)
    trace.play(90, lambda minute: [process(sm_pct=50.0, memory_bytes=GIB // 2)])
    assert trace.opened == [UNCLAIMED]
    assert trace.told[0][0] > 60


def test_each_rule_can_be_switched_off() -> None:
    off = policies(empty_on=False, unused_on=False, over_on=False)
    booked = [claim("4", on=0, memory_bytes=GIB, since=NOW - timedelta(hours=1))]
    trace = Trace(off, [gpu(0), gpu(1)], claims=[*booked, claim("5", on=1, since=NOW)])
    trace.play(40, lambda minute: [of_job(memory_bytes=9 * GIB)])
    assert trace.told == []
