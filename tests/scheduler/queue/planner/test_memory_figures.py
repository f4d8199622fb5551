"""Placement on GPUs whose memory is not supported, could not be read once, or is unknown."""

from __future__ import annotations

import pytest

from scheduler.facts.blockers import BlockerCode
from scheduler.facts.jobs import Requirement
from scheduler.facts.plans import Holder, PlanPolicy, Slot
from scheduler.queue.planner.blockers import condition
from scheduler.queue.planner.matching import rejections
from scheduler.queue.wording import text
from tests.builders import GIB, slot

POLICY = PlanPolicy()


def without_figure(**changes: object) -> Slot:
    return slot(total_bytes=None, free_bytes=None, **{"memory_unsupported": True, **changes})


@pytest.mark.parametrize(
    "gpu",
    [without_figure(), without_figure(memory_unsupported=False), slot(free_bytes=None)],
    ids=["not supported", "unknown", "free memory unknown"],
)
def test_a_whole_gpu_needs_no_figure_of_its_memory(gpu: Slot) -> None:
    assert rejections(Requirement(exclusive=True), gpu, POLICY) == ()


def test_a_job_that_declares_no_memory_gets_an_empty_gpu_without_a_figure() -> None:
    assert rejections(Requirement(), without_figure(), POLICY) == ()
    held = without_figure(foreign=(Holder(name="python"),))
    (blocker,) = rejections(Requirement(), held, POLICY)
    assert blocker.code is BlockerCode.MEMORY_UNKNOWN


def test_not_supported_is_no_work_for_an_operator() -> None:
    (blocker,) = rejections(Requirement(memory_bytes=GIB), without_figure(), POLICY)
    assert "has no figure for its memory" in text(blocker)
    assert "must look" not in condition(blocker)
    assert "gpu_memory_gib" in condition(blocker)


def test_a_failed_call_is_named_and_waits_for_the_next_reading() -> None:
    call = "nvmlDeviceGetMemoryInfo: Unknown Error"
    gpu = without_figure(memory_unsupported=False, failed_call=call)
    (blocker,) = rejections(Requirement(memory_bytes=GIB), gpu, POLICY)
    assert call in text(blocker)
    assert "must look" not in condition(blocker)


def test_an_unknown_figure_is_work_for_an_operator() -> None:
    gpu = without_figure(memory_unsupported=False)
    (blocker,) = rejections(Requirement(memory_bytes=GIB), gpu, POLICY)
    assert "An operator must look" in condition(blocker)
