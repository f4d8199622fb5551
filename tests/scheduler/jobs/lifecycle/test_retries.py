from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.facts.jobs import Outcome
from scheduler.jobs.policy import (
    AttemptEnd,
    FailureCause,
    RetryDecision,
    RetryHistory,
    decide,
    pause,
    reports_gpu_memory,
)
from tests.builders import GIB


def _decision(outcome: Outcome = Outcome.FAILED, **facts: Any) -> RetryDecision:
    """Facts of the end and of the past by their names."""
    of_end = {name: facts.pop(name) for name in AttemptEnd.__struct_fields__ if name in facts}
    largest = facts.pop("largest_bytes", None)
    end = AttemptEnd(**({"exit_code": 1} | of_end), outcome=outcome)
    return decide(end, RetryHistory(job_id=7, **facts), largest)


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.TIMED_OUT])
def test_some_ends_are_ends_whatever_was_asked(outcome: Outcome) -> None:
    decision = _decision(outcome, yielded=True, requeue=True, retries=3)

    assert (decision.again, decision.outcome) == (False, outcome)


def test_who_saved_its_work_runs_again() -> None:
    decision = _decision(yielded=True, exit_code=85)

    assert (decision.again, decision.requeues, decision.pause) == (True, 1, None)
    assert decision.outcome is Outcome.PREEMPTED


def test_who_yielded_otherwise_runs_again_if_it_asked_for_that() -> None:
    assert _decision(yielded=True, requeue=True).again
    decision = _decision(yielded=True, exit_code=3)

    assert (decision.again, decision.outcome) == (False, Outcome.PREEMPTED)
    assert decision.text == (
        "It had to leave its GPU and ended with exit code 3. Exit code 85 would have said that it"
        " saved its work and is to run again."
    )


def test_a_job_that_was_killed_when_it_had_to_leave_is_said_to_be_killed() -> None:
    decision = _decision(yielded=True, signal=9)

    assert decision.outcome is Outcome.PREEMPTED
    assert "was ended by signal 9 (SIGKILL)" in decision.text
    assert "85" not in decision.text


def test_85_unasked_means_nothing_of_a_job_that_nobody_may_ask() -> None:
    assert _decision(exit_code=85).outcome is Outcome.FAILED


@pytest.mark.parametrize("options", [{"preemptible": True}, {"requeue": True}])
def test_who_may_be_asked_and_saves_by_itself_runs_again(options: dict[str, bool]) -> None:
    decision = _decision(exit_code=85, **options)

    assert (decision.again, decision.outcome, decision.requeues) == (True, Outcome.PREEMPTED, 1)
    is_held = _decision(exit_code=85, requeues=5, **options).held
    assert is_held == "It left by itself to be run again 6 times."


def test_who_saves_its_work_at_a_shutdown_runs_again_uncounted() -> None:
    decision = _decision(exit_code=85, cause=FailureCause.MACHINE, preemptible=True, requeues=5)

    assert (decision.again, decision.requeues, decision.held) == (True, 5, "")


def test_after_five_requeues_it_is_held() -> None:
    assert _decision(yielded=True, exit_code=85, requeues=4).held == ""
    decision = _decision(yielded=True, exit_code=85, requeues=5)

    assert decision.again
    assert decision.held == "It had to make room for others 6 times."


def test_an_owner_who_comes_does_not_count() -> None:
    decision = _decision(yielded=True, exit_code=85, requeues=5, counts=False)

    assert (decision.held, decision.requeues) == ("", 5)


def test_who_made_room_comes_not_back_on_its_heels() -> None:
    assert _decision(yielded=True, exit_code=85).cool_down == timedelta(minutes=30)


def test_what_the_machine_lost_runs_again_if_it_asked_for_that() -> None:
    assert not _decision(Outcome.LOST, cause=FailureCause.MACHINE).again
    decision = _decision(Outcome.LOST, cause=FailureCause.MACHINE, requeue=True)

    assert (decision.again, decision.failures, decision.requeues, decision.pause) == (
        True,
        0,
        0,
        None,
    )
    assert _decision(Outcome.LOST, cause=FailureCause.MACHINE, requeue=True, lost=1).pause


def test_what_the_machine_lost_is_no_failure_of_a_job_that_asked_for_retries() -> None:
    decision = _decision(Outcome.LOST, cause=FailureCause.MACHINE, retries=2, failures=2)

    assert (decision.again, decision.failures) == (True, 2)


def test_what_the_machine_lost_goes_on_from_what_it_saved() -> None:
    lost: dict[str, Any] = {"outcome": Outcome.LOST, "cause": FailureCause.MACHINE}

    assert _decision(**lost, preemptible=True, has_saved=True).again
    assert not _decision(**lost, preemptible=True).again
    assert not _decision(**lost, has_saved=True).again


def test_what_the_machine_loses_again_and_again_is_held() -> None:
    assert _decision(Outcome.LOST, cause=FailureCause.MACHINE, requeue=True, lost=9).held == ""
    assert _decision(Outcome.LOST, cause=FailureCause.MACHINE, requeue=True, lost=10).held


def test_a_loss_after_a_completed_item_has_no_pause_and_is_not_counted() -> None:
    lost: dict[str, Any] = {"outcome": Outcome.LOST, "cause": FailureCause.MACHINE}

    decision = _decision(**lost, requeue=True, lost=10, has_delivered=True)

    assert (decision.again, decision.pause, decision.held) == (True, None, "")


def test_a_failure_is_retried_as_often_as_was_asked() -> None:
    assert not _decision().again
    first = _decision(retries=2)
    assert (first.again, first.failures) == (True, 1)
    assert first.pause is not None
    assert not _decision(retries=2, failures=2).again


def test_requeue_is_no_wish_to_retry_ones_own_failures() -> None:
    assert not _decision(requeue=True).again


def test_out_of_memory_it_declares_more() -> None:
    decision = _decision(cause=FailureCause.GPU_MEMORY, retries=1, memory_bytes=20 * GIB)

    assert decision.memory_bytes == 25 * GIB
    assert decision.text == "it ran out of GPU memory, and declares 25 GiB now"


def test_out_of_host_memory_it_declares_more_of_it_up_to_what_the_host_has() -> None:
    facts: dict[str, Any] = {"cause": FailureCause.MEMORY, "retries": 1}
    decision = _decision(**facts, memory_bytes=20 * GIB, host_memory_bytes=8 * GIB)

    assert (decision.memory_bytes, decision.host_memory_bytes) == (20 * GIB, 10 * GIB)
    assert decision.text == "it ran out of host memory, and declares 10 GiB now"
    limited = _decision(**facts, host_memory_bytes=60 * GIB, largest_bytes=64 * GIB)
    assert limited.host_memory_bytes == 64 * GIB
    assert _decision(**facts).host_memory_bytes is None


def test_nothing_declares_more_than_the_largest_gpu_has() -> None:
    facts: dict[str, Any] = {
        "cause": FailureCause.GPU_MEMORY,
        "retries": 1,
        "largest_bytes": 80 * GIB,
    }

    assert _decision(**facts, memory_bytes=70 * GIB).memory_bytes == 80 * GIB
    assert _decision(**facts, memory_bytes=90 * GIB).memory_bytes == 90 * GIB
    assert _decision(**facts).memory_bytes is None


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 200), st.integers(1, 10**9))
def test_pauses_double_up_to_a_longest_and_spread_a_little(times: int, job: int) -> None:
    middle = timedelta(seconds=min(3600, 60 * 2 ** (times - 1)))

    assert middle * 0.9 <= pause(times, job) <= middle * 1.1
    assert pause(times, job) == pause(times, job)


def test_jobs_that_fail_together_do_not_come_back_together() -> None:
    assert len({pause(1, job) for job in range(100)}) > 90


@pytest.mark.parametrize(
    "line",
    [
        b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
        b"RuntimeError: CUDA error: out of memory (cudaErrorMemoryAllocation)",
        b"jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate",
        b"cuInit failed: CUDA_ERROR_OUT_OF_MEMORY",
    ],
)
def test_it_reads_from_a_log_that_gpu_memory_was_too_small(line: bytes) -> None:
    assert reports_gpu_memory(b"epoch 3\n" + line + b"\n")


@pytest.mark.parametrize(
    "line", [b"java.lang.OutOfMemoryError: Java heap space", b"MemoryError", b""]
)
def test_other_memory_is_another_matter(line: bytes) -> None:
    assert not reports_gpu_memory(line)
