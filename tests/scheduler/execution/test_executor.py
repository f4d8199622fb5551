from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from monitor.runtime.probes.process_identity import me
from scheduler.execution.policy import Action
from scheduler.execution.steps import specs
from scheduler.execution.steps.executor import Executor
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts import people
from scheduler.jobs.rows import changes as job_queue
from scheduler.models import Attempt, Job
from scheduler.runner import attempt_files, files
from scheduler.runner.attempt_files import own_claim
from tests import jobs_made
from tests.builders import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture
def executor(data: Path) -> Executor:
    writer = SpecWriter(data=data, run_as="service", grace_s=1.0, wake_folder=data / "run")
    return Executor(transaction.atomic, "gpubox", writer)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The attempts whose files were read."""
    folders: list[Path] = []
    look = attempt_files.read_attempt

    def noted(folder: Path, nonce: str) -> Any:
        folders.append(folder)
        return look(folder, nonce)

    monkeypatch.setattr(attempt_files, "read_attempt", noted)
    return folders


def _run_by_me(owner: User, data: Path) -> tuple[Job, Path]:
    """A running job whose runner is this very process."""
    job = jobs_made.running(owner)
    attempt = job.attempts.get()
    own = me()
    Attempt.objects.filter(pk=attempt.pk).update(
        runner_pid=own.pid, runner_start_ticks=own.start_ticks, boot_id=own.boot_id
    )
    (data / "jobs").mkdir(exist_ok=True)
    folder = files.attempt_folder(data, job.pk, 1)
    files.make_folder(folder)
    claimed = own_claim(attempt.nonce, runner=True).to_json()
    files.write_json(folder / files.CLAIMED, claimed)
    return job, folder


def test_no_limit_of_the_service_reaches_a_job_but_models_keep_theirs() -> None:
    chosen = {"nofile": 4096, "core": "unlimited"}

    default = specs._limits(Job())
    assert default == {**dict.fromkeys(people.NAMES, -1), **people.OF_A_LOGIN}
    assert specs._limits(Job(limits=chosen)) == {**default, "nofile": 4096, "core": -1}
    assert specs._limits(Job(limits=chosen, model_service_id=1)) == {}


def test_the_folder_of_a_withdrawn_task_of_another_engine_is_not_used(
    executor: Executor, alice: User, data: Path, tmp_path: Path
) -> None:
    """The account of the job can write there, and would choose the command of the service."""
    attempt = jobs_made.running(alice).attempts.get()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (data / "jobs" / str(attempt.job_id)).mkdir(parents=True)
    link = files.attempt_folder(data, attempt.job_id, attempt.number)
    link.symlink_to(theirs)

    executor._specs.write(attempt)

    assert not link.is_symlink()
    assert (link / files.SPEC).exists()
    assert list(theirs.iterdir()) == []


def test_of_a_job_that_just_runs_no_file_is_read(
    executor: Executor, alice: User, data: Path, looked_at: list[Path]
) -> None:
    _run_by_me(alice, data)

    assert executor.step(NOW) == {}
    assert looked_at == []


def test_a_result_a_request_and_a_death_are_looked_at(
    executor: Executor, alice: User, data: Path, looked_at: list[Path]
) -> None:
    ended, ended_in = _run_by_me(alice, data)
    stopped, stopped_in = _run_by_me(alice, data)
    orphan, orphan_in = _run_by_me(alice, data)
    nonce = ended.attempts.get().nonce
    files.write_json(ended_in / files.RESULT, {"nonce": nonce, "ended_at": 1.0, "exit_code": 0})
    (stopped_in / files.CLAIMED).unlink()
    job_queue.request_cancel(stopped.pk, "alice", NOW)
    Attempt.objects.filter(job=orphan).update(runner_start_ticks=1)

    assert executor.step(NOW)[ended.pk] is Action.END
    assert looked_at == [ended_in, stopped_in, orphan_in]
    ended.refresh_from_db()
    assert ended.outcome == "succeeded"
