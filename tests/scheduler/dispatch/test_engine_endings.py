"""How a job ends that another engine has stopped."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from django.contrib.auth.models import User

from scheduler.dispatch.steps import engine_answers
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts.jobs import YieldOptions
from scheduler.jobs.rows import transitions
from scheduler.models import Attempt, EngineTask, Job, YieldRequest
from scheduler.runner.attempt_files import AttemptFiles
from scheduler.runner.spec import Result
from tests import jobs_made
from tests.builders import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
LATER = NOW + timedelta(minutes=5)


class FakeSpecs:
    """Folders without files."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, attempt: Attempt) -> Path:
        return self._root

    def given(self, attempt: Attempt) -> Any:
        return type("Given", (), {"result": self._root / "result.json"})

    def has_saved(self, job: Job) -> bool:
        return False


def stopped(owner: User, root: Path, *, exit_code: int | None = None, **task: Any) -> Job:
    """The job after SIGTERM, with these facts about its task."""
    options = YieldOptions(requeue=True)
    job = jobs_made.waiting(owner, yield_options=options)
    facts: dict[str, Any] = {
        "job": job,
        "number": 1,
        "host": "login1",
        "nonce": "ab" * 16,
        "engine": "slurm",
    }
    row = EngineTask.objects.create(**facts, ref="10", created_at=NOW, tried_at=NOW, **task)
    attempt = Attempt(**facts, engine_ref="10", node="n1", gpu_uuids=[])
    assert transitions.adopt(attempt, NOW)
    result = Result(
        nonce=row.nonce,
        ended_at=LATER.timestamp(),
        exit_code=exit_code,
        signal=None if exit_code is not None else 15,
        stopped="asked",
    )
    files = AttemptFiles(claimed=None, runner_alive=False, started=None, result=result)
    change = engine_answers.end(row, attempt, files, cast(SpecWriter, FakeSpecs(root)), LATER)
    assert change is not None
    change()
    return Job.objects.get(pk=job.pk)


def end_of(job: Job) -> tuple[str, str, str]:
    attempt = job.attempts.get()
    return job.state, attempt.outcome, attempt.problem


@pytest.mark.parametrize("word", ["PENDING", "RUNNING", "COMPLETING"])
def test_a_stopped_job_that_slurm_has_forgotten_is_lost_and_runs_again(
    alice: User, tmp_path: Path, word: str
) -> None:
    """The last word about it is older than its end."""
    job = stopped(alice, tmp_path, word=word, missing_since=NOW)

    text = "It was stopped by a signal, and Slurm no longer lists its job 10."
    assert end_of(job) == ("queued", "lost", text)
    assert EngineTask.objects.get().closed_at == LATER


def test_a_forgotten_job_that_saved_its_work_was_preempted(alice: User, tmp_path: Path) -> None:
    job = stopped(alice, tmp_path, exit_code=85, word="RUNNING", missing_since=NOW)

    assert end_of(job)[:2] == ("queued", "preempted")


@pytest.mark.parametrize(
    ("word", "outcome"),
    [
        ("PREEMPTED", "preempted"),
        ("TIMEOUT", "timed_out"),
        ("CANCELLED by 0", "cancelled"),
        ("FAILED", "failed"),
    ],
)
def test_a_stopped_job_ends_by_the_word_of_slurm(
    alice: User, tmp_path: Path, word: str, outcome: str
) -> None:
    job = stopped(alice, tmp_path, word=word, ended_since=NOW)

    assert end_of(job)[1] == outcome


def test_a_job_that_slurm_stopped_and_ran_again_in_vain_runs_again_here(
    alice: User, tmp_path: Path
) -> None:
    """The second launch found the attempt claimed, and ended with 0."""
    job = stopped(alice, tmp_path, word="COMPLETED", ended_since=NOW)

    assert end_of(job)[:2] == ("queued", "preempted")
    assert "put it back into its queue" in YieldRequest.objects.get().text
