"""A real Slurm behind the protocol of engines."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from scheduler.dispatch.steps.engine_answers import attempt_of
from scheduler.dispatch.steps.engine_tasks import digest_of, ticket_of
from scheduler.execution.engines.facts import EngineName, Ticket
from scheduler.execution.engines.policy import EngineRules
from scheduler.execution.engines.slurm import engine_of
from scheduler.execution.steps.specs import SpecWriter
from scheduler.models import EngineTask
from tests.processes.scheduling import submit
from tests.scheduler.execution.engines import contract
from tests.slurm.cluster import Cluster

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.processes,
    pytest.mark.django_db(transaction=True),
]


class SlurmStand:
    """Tasks of this user's jobs. No step of gpucoord follows them."""

    def __init__(self, settings: Any, owner: User) -> None:
        self.engine = engine_of(settings.CONFIG)
        self._owner = owner
        self._specs = SpecWriter(
            data=settings.DATA, run_as="auto", grace_s=5.0, wake_folder=settings.DATA / "run"
        )

    def ticket(self, command: str) -> Ticket:
        job = submit(self._owner, command)
        task = EngineTask.objects.create(
            job=job, host="here", engine=EngineName.SLURM.value, number=1,
            nonce=secrets.token_hex(16), digest=digest_of(job), created_at=timezone.now(),
        )  # fmt: skip
        folder, account = self._specs.write_for_engine(attempt_of(task))
        return ticket_of(task, str(folder), account, EngineRules())

    def missing_ref(self) -> str:
        return "999999"


@pytest.fixture
def stand(slurm: Cluster, settings: Any, ann: User) -> SlurmStand:
    return SlurmStand(settings, ann)


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
def test_slurm_keeps_the_contract_of_engines(
    check: Callable[[contract.Stand], None], stand: SlurmStand
) -> None:
    check(stand)
