"""The step of another engine: its calls run beside the loop, and no answer stops the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from msgspec.structs import replace

from monitor.models import ItemFault
from scheduler.dispatch.steps.engine_answers import (
    OUTPUT,
    _left_text,
    best_by_nonce,
    record_unstarted,
)
from scheduler.dispatch.steps.engine_tasks import EngineStep
from scheduler.execution.engines.facts import EngineName, TaskList, TaskReport, TaskState
from scheduler.execution.engines.policy import EngineRules
from scheduler.execution.engines.slurm import SlurmEngine
from scheduler.execution.policy import MAX_STARTS
from scheduler.execution.steps.specs import SpecWriter
from scheduler.models import Attempt, EngineStatus, EngineTask
from tests import jobs_made
from tests.builders import NOW
from tests.pace import LONGEST_S, Stopwatch

pytestmark = pytest.mark.django_db
EVERY = timedelta(seconds=1)


class FakeEngine:
    """Without tasks. A look waits for `answers`; `listed_nodes` is its answer about nodes."""

    name = EngineName.SLURM

    def __init__(self) -> None:
        self.looks = 0
        self.answers = threading.Event()
        self.error: Exception | None = None
        self.listed_nodes: list[object] = []
        self.changes: list[str] = []

    def look(self) -> TaskList:
        self.looks += 1
        self.answers.wait(LONGEST_S)
        if self.error is not None:
            raise self.error
        return TaskList()

    def nodes(self) -> list[object]:
        return self.listed_nodes

    def version(self) -> str:
        return "slurm 22.05"

    def hold(self, ref: str) -> str:
        self.changes.append(f"hold {ref}")
        return ""

    def stop(self, ref: str) -> str:
        self.changes.append(f"stop {ref}")
        return ""


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    made = FakeEngine()
    yield made
    made.answers.set()


@pytest.fixture
def step(engine: FakeEngine) -> Iterator[EngineStep]:
    specs = cast(SpecWriter, None)  # there are no tasks whose folders would be needed
    slurm = cast(SlurmEngine, engine)
    made = EngineStep(transaction.atomic, "here", specs, slurm, EngineRules(), EVERY)
    yield made
    engine.answers.set()
    made.close()


def steps_until(step: EngineStep, is_done: Callable[[], Any], every: timedelta = EVERY) -> None:
    """Step with a clock that goes on until `is_done`."""
    watch, now = Stopwatch(), NOW
    while not is_done():
        assert not watch.has_run(LONGEST_S)
        step.step(now)
        now += every
        threading.Event().wait(0.01)


def test_a_look_that_takes_long_is_not_started_a_second_time(
    engine: FakeEngine, step: EngineStep
) -> None:
    steps_until(step, lambda: engine.looks)
    for second in range(60):
        step.step(NOW + timedelta(minutes=1, seconds=second))

    assert engine.looks == 1
    engine.answers.set()
    steps_until(step, lambda: engine.looks > 1, timedelta(minutes=1))


def test_an_answer_that_cannot_be_stored_stops_no_other_answer(
    engine: FakeEngine, step: EngineStep
) -> None:
    engine.listed_nodes = ["no report of a node"]
    engine.answers.set()

    steps_until(step, lambda: EngineStatus.objects.exclude(answered_at=None).exists())
    steps_until(step, lambda: ItemFault.objects.filter(part="engine").exists())

    assert list(ItemFault.objects.values_list("item", flat=True)) == ["nodes"]


def test_looks_that_fail_are_one_fault(engine: FakeEngine, step: EngineStep) -> None:
    engine.error = ValueError("no list")
    engine.answers.set()

    steps_until(step, lambda: engine.looks >= 5, timedelta(minutes=1))

    assert list(ItemFault.objects.values_list("item", flat=True)) == ["look"]


def test_a_task_that_slurm_queues_again_is_not_said_to_have_left_for_another_job() -> None:
    assert _left_text("PREEMPTED") == "Slurm preempted it for another job."
    for word in ("PENDING", "REQUEUED"):
        assert "or without its node" in _left_text(word)


def _chosen(first: TaskState, second: TaskState, claimed: str = "") -> tuple[str, list[str]]:
    """The ref that counts and those that are stopped when a nonce has two tasks, "1" and "2".

    claimed: the task that the runner reports.
    """
    states = {"1": first, "2": second}
    tasks = [TaskReport(ref=ref, state=state, nonce="n") for ref, state in states.items()]
    best, extras = best_by_nonce(TaskList(tasks=tasks), {}, lambda _: claimed)
    return best["n"].ref, [report.ref for report in extras]


def _twice(first: TaskState, second: TaskState) -> list[str]:
    return _chosen(first, second)[1]


def test_of_two_tasks_of_a_nonce_the_one_that_waits_is_stopped() -> None:
    assert _twice(TaskState.WAITING, TaskState.RUNNING) == ["1"]
    assert _twice(TaskState.WAITING, TaskState.WAITING) == ["2"]


def test_of_two_tasks_of_a_nonce_that_run_none_is_stopped() -> None:
    assert _twice(TaskState.RUNNING, TaskState.RUNNING) == []


def test_of_two_tasks_of_a_nonce_the_one_counts_in_which_the_runner_is() -> None:
    running, waiting, ended = TaskState.RUNNING, TaskState.WAITING, TaskState.ENDED
    assert _chosen(running, running, "2") == ("2", [])
    assert _chosen(ended, ended, "2") == ("2", [])
    # The first one has run, and the second one is not needed any more.
    assert _chosen(ended, waiting, "1") == ("1", ["2"])


def test_a_claim_that_names_no_task_of_its_nonce_changes_nothing() -> None:
    for claimed in ("", "99"):
        assert _chosen(TaskState.ENDED, TaskState.RUNNING, claimed) == ("2", [])


def test_a_task_too_many_is_held_before_it_is_stopped(engine: FakeEngine, step: EngineStep) -> None:
    def stop(*reports: TaskReport) -> list[str]:
        engine.changes.clear()
        step._stop_extras(list(reports), NOW)
        watch = Stopwatch()
        while not engine.changes and not watch.has_run(LONGEST_S):
            step._calls.finished()
        return list(engine.changes)

    waits = TaskReport(ref="7", state=TaskState.WAITING, reason="Resources")

    assert stop(waits) == ["hold 7"]
    assert stop(replace(waits, reason="JobHeldUser")) == ["stop 7"]
    assert stop(TaskReport(ref="8", state=TaskState.RUNNING)) == ["stop 8"]


def test_what_a_job_wrote_for_slurm_is_shown_as_one_line_of_text(alice: User, data: Path) -> None:
    job = jobs_made.waiting(alice)
    specs = SpecWriter(data=data, run_as="service", grace_s=5, wake_folder=data)
    tasks = [
        EngineTask.objects.create(
            job=job, host="login1", engine="slurm", number=1, nonce=f"{n:032x}", word="FAILED",
            created_at=NOW, ended_since=NOW, closed_at=NOW if n else None,
        )
        for n in range(MAX_STARTS)
    ]  # fmt: skip
    folder = specs.folder(Attempt(job=job, number=1))
    folder.mkdir(parents=True)
    (folder / OUTPUT).write_bytes(b"no python\0\n\x1b[2J\xe2\x80\xaeevil")

    record_unstarted(tasks[0], specs, NOW)

    job.refresh_from_db()
    assert job.held.endswith("times: FAILED. no python\\x00 \\x1b[2J\\u202eevil")
