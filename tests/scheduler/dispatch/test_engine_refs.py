"""The engine's task of an attempt: it follows the task in which the runner is, with its GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from msgspec.structs import replace

from monitor.models import Claim, Gpu
from scheduler.dispatch.steps.engine_answers import EngineAnswers, record_allocation
from scheduler.dispatch.steps.engine_tasks import EngineStep
from scheduler.execution.engines.facts import (
    Allocation,
    EngineAway,
    EngineName,
    TaskList,
    TaskReport,
    TaskState,
)
from scheduler.execution.engines.policy import EngineRules
from scheduler.jobs.rows import transitions
from scheduler.models import Attempt, EngineTask, Job
from tests import jobs_made
from tests.builders import NOW, gpu_uuid
from tests.pace import LONGEST_S, Stopwatch

pytestmark = pytest.mark.django_db
NONCE, HOST = "ab" * 16, "login1"
ON_N1 = TaskReport(ref="1", state=TaskState.RUNNING, word="RUNNING", nonce=NONCE, node="n1")
ON_N2 = TaskReport(ref="2", state=TaskState.RUNNING, word="RUNNING", nonce=NONCE, node="n2")


@dataclass
class FakeFolders:
    """`ref`: in the claim of every task."""

    ref: str = ""
    reads: list[str] = field(default_factory=list)

    def uid_of(self, task: EngineTask) -> int | None:
        return None

    def ref_of(self, task: EngineTask) -> str:
        self.reads.append(task.nonce)
        return self.ref


@pytest.fixture
def folders() -> FakeFolders:
    return FakeFolders()


@pytest.fixture
def answers(folders: FakeFolders) -> EngineAnswers:
    every = timedelta(seconds=1)
    return EngineAnswers(transaction.atomic, HOST, EngineName.SLURM, every, cast(Any, folders))


@pytest.fixture
def job(alice: User) -> Job:
    """Its attempt was adopted as task 1 on n1, with a GPU there."""
    times: dict[str, Any] = dict.fromkeys(("state_since_at", "first_seen_at", "last_seen_at"), NOW)
    for number, node in enumerate(("n1", "n2")):
        Gpu.objects.create(host=node, index=0, uuid=gpu_uuid(number), **times)
    made = jobs_made.waiting(alice)
    facts: dict[str, Any] = {
        "job": made,
        "number": 1,
        "host": HOST,
        "nonce": NONCE,
        "engine": "slurm",
    }
    EngineTask.objects.create(**facts, ref="1", created_at=NOW, tried_at=NOW, submitted_at=NOW)
    attempt = Attempt(**facts, engine_ref="1", node="n1", gpu_uuids=[])
    assert transitions.adopt(attempt, NOW)
    allocate("1", "n1")
    return made


def allocate(ref: str, node: str) -> None:
    given = Allocation(gpus=1, gpu_indices={node: (0,)})
    record_allocation(transaction.atomic, NONCE, ref, given, node, NOW)


def take(answers: EngineAnswers, *reports: TaskReport, second: int = 1) -> None:
    at = NOW + timedelta(seconds=second)
    answers.take(at, TaskList(tasks=reports), lambda *_: None)


def state(job: Job) -> tuple[str, str, list[str]]:
    row = job.attempts.get()
    return row.engine_ref, row.node, row.gpu_uuids


def claimed_on() -> list[str]:
    return list(Claim.objects.filter(until_at=None).values_list("host", flat=True))


def test_an_attempt_follows_the_task_that_its_runner_names(
    job: Job, answers: EngineAnswers, folders: FakeFolders
) -> None:
    take(answers, ON_N1, ON_N2)
    assert state(job) == ("1", "n1", [gpu_uuid(0)])

    folders.ref = "2"
    take(answers, ON_N1, ON_N2, second=2)

    assert state(job) == ("2", "n2", [])
    assert claimed_on() == []
    assert EngineTask.objects.get().ref == "2"
    allocate("2", "n2")
    assert state(job) == ("2", "n2", [gpu_uuid(1)])
    assert claimed_on() == ["n2"]


def test_a_late_answer_about_the_other_task_gives_no_gpus(
    job: Job, answers: EngineAnswers, folders: FakeFolders
) -> None:
    folders.ref = "2"
    take(answers, ON_N1, ON_N2)

    allocate("1", "n1")

    assert state(job) == ("2", "n2", [])


def test_a_claim_that_changes_later_moves_nothing(
    job: Job, answers: EngineAnswers, folders: FakeFolders
) -> None:
    for second, ref in enumerate(("2", "1", "2", "1"), 1):
        folders.ref = ref
        take(answers, ON_N1, ON_N2, second=second)

    assert state(job)[0] == "2"
    assert len(folders.reads) == 1


def test_the_claim_is_not_read_for_a_nonce_with_one_task(
    job: Job, answers: EngineAnswers, folders: FakeFolders
) -> None:
    take(answers, ON_N1)

    assert folders.reads == []


def test_an_attempt_that_began_before_its_task_was_listed_gets_its_task(
    job: Job, answers: EngineAnswers
) -> None:
    """sbatch may answer late, when the runner has claimed the attempt already."""
    job.attempts.update(engine_ref="", node="", gpu_uuids=[])
    EngineTask.objects.update(ref="2")

    take(answers, ON_N2)

    assert state(job) == ("2", "n2", [])


@dataclass
class FakeEngine:
    """A list of tasks. GPU 0 of `node` belongs to each task; `is_away`: only the list answers."""

    tasks: tuple[TaskReport, ...]
    node: str
    is_away: bool = False
    asked: list[str] = field(default_factory=list)
    name: EngineName = EngineName.SLURM

    def look(self) -> TaskList:
        return TaskList(tasks=tuple(replace(task, uid=os.getuid()) for task in self.tasks))

    def nodes(self) -> list[object]:
        return []

    def version(self) -> str:
        return "slurm 22.05"

    def allocation(self, ref: str) -> Allocation:
        self.asked.append(ref)
        if self.is_away:
            raise EngineAway("no answer")
        return Allocation(gpus=1, gpu_indices={self.node: (0,)})


class FakeSpecs:
    """Folders without files."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, attempt: Attempt) -> Path:
        return self._root


def steps(engine: FakeEngine, root: Path) -> Iterator[EngineStep]:
    """A step each second; the calls of one have ended before the next."""
    made = EngineStep(
        transaction.atomic,
        HOST,
        cast(Any, FakeSpecs(root)),
        cast(Any, engine),
        EngineRules(),
        timedelta(seconds=1),
    )
    for second in range(60):
        made.step(NOW + timedelta(minutes=1, seconds=second))
        watch = Stopwatch()
        while made._calls._done.qsize() < len(made._calls._in_flight):
            assert not watch.has_run(LONGEST_S)
        yield made
    made.close()


def test_the_gpus_of_a_recorded_attempt_are_asked_for_when_it_is_in_another_task(
    job: Job, tmp_path: Path
) -> None:
    job.attempts.update(pid=71, start_ticks=1, started_at=NOW)
    engine = FakeEngine((ON_N2,), "n2")

    for _ in steps(engine, tmp_path):
        if state(job)[2] == [gpu_uuid(1)]:
            break

    assert state(job) == ("2", "n2", [gpu_uuid(1)])
    assert claimed_on() == ["n2"]


def test_gpus_that_the_engine_did_not_tell_are_asked_for_again(job: Job, tmp_path: Path) -> None:
    job.attempts.update(pid=71, start_ticks=1, started_at=NOW, gpu_uuids=[])
    engine = FakeEngine((ON_N1,), "n1", is_away=True)

    for second, _ in enumerate(steps(engine, tmp_path)):
        engine.is_away = second < 20

    assert state(job) == ("1", "n1", [gpu_uuid(0)])
    # Every five seconds until there is an answer.
    assert 4 <= len(engine.asked) <= 6


def test_gpus_that_slurm_does_not_name_are_asked_for_once(job: Job, tmp_path: Path) -> None:
    job.attempts.update(pid=71, start_ticks=1, started_at=NOW, gpu_uuids=[])
    engine = FakeEngine((ON_N1,), "of no host")

    for _ in steps(engine, tmp_path):
        pass

    assert engine.asked == ["1"]
