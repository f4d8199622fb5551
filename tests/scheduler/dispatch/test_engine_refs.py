"""The engine's task of an attempt: it follows the task in which the runner is."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from monitor.models import Claim, Gpu
from scheduler.dispatch.steps.engine_allocations import record_allocation
from scheduler.dispatch.steps.engine_answers import EngineAnswers
from scheduler.engines.facts import Allocation, EngineName, TaskList, TaskReport, TaskState
from scheduler.lifecycle.rows import transitions
from scheduler.models import Attempt, EngineTask, Job
from tests import jobs_made
from tests.builders import NOW, gpu_uuid

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
