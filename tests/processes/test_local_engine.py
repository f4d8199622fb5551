"""gpucoord's own runner behind the protocol of engines, with real jobs."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler.execution.engines.facts import TaskState, Ticket
from scheduler.execution.steps.executor import UNCHANGED, LocalEngine, LocalRef
from scheduler.runner import accounts, attempt_files, files, process_tree
from scheduler.runner.spec import Spec
from tests.processes.attempts import wait_for
from tests.scheduler.execution.engines import contract

pytestmark = pytest.mark.processes


class LocalStand:
    """Attempts of one job in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.engine = LocalEngine("gpubox")
        self.nonces: list[str] = []
        self._folder = folder

    def ticket(self, command: str) -> Ticket:
        nonce = secrets.token_hex(16)
        self.nonces.append(nonce)
        number = len(self.nonces)
        folder = self._folder / "1" / str(number)
        files.make_folder(folder)
        own = accounts.account_for("root", account=None, superuser=True, run_as="service")
        env = accounts.environment(own, {}, job_id=1, attempt=number, nonce=nonce, gpu_uuids=())
        spec = Spec(
            job_id=1, attempt=number, nonce=nonce, argv=["/bin/sh", "-c", command], env=env,
            cwd=str(folder), account=own.name, grace_s=5.0, wake_folder=str(folder / "run"),
        )  # fmt: skip
        files.write_json(folder / files.SPEC, spec.to_json())
        return Ticket(job_id=1, nonce=nonce, folder=str(folder))

    def missing_ref(self) -> str:
        return str(LocalRef(self._folder / "7" / "1", contract.UNKNOWN_NONCE))


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[LocalStand]:
    (tmp_path / "jobs").mkdir()
    made = LocalStand(tmp_path / "jobs")
    yield made
    made.engine.close()
    for nonce in made.nonces:
        process_tree.signal_all(process_tree.orphans(0, 0, nonce), signal.SIGKILL)


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
def test_the_runner_keeps_the_contract_of_engines(
    check: Callable[[contract.Stand], None], stand: LocalStand
) -> None:
    check(stand)


def test_a_task_that_just_runs_is_unchanged_and_its_files_are_not_read(
    stand: LocalStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = stand.ticket("sleep 60")
    contract.submitted(stand, ticket)
    folder = Path(ticket.folder)
    started = wait_for(lambda: attempt_files.read_attempt(folder, ticket.nonce).started)
    runner = started.runner_pid, started.runner_start_ticks
    ref = str(LocalRef(folder, ticket.nonce, runner, started.boot_id))
    monkeypatch.setattr(attempt_files, "read_attempt", lambda *_: pytest.fail("it was read"))

    (report,) = stand.engine.look([ref]).tasks

    assert (report.state, report.word) == (TaskState.RUNNING, UNCHANGED)


def test_a_folder_that_cannot_be_read_hides_no_other_task(stand: LocalStand) -> None:
    ticket = stand.ticket("echo ran")
    ref = contract.submitted(stand, ticket)
    wait_for(lambda: contract.result_of(ticket))

    look = stand.engine.look(["no ref", ref])

    assert ([task.ref for task in look.tasks], look.unread) == ([ref], 1)
