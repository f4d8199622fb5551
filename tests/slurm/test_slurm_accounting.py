"""A real Slurm with slurmdbd: GPUs are counted as TRES, and the ends of forgotten jobs are kept."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import User

from scheduler.execution.engines.slurm import engine_of
from scheduler.facts.jobs import Requirement
from tests.processes.scheduling import Scheduler, attempt_of, submit
from tests.slurm.accounting import AccountedCluster
from tests.slurm.cluster import Cluster

pytestmark = [
    pytest.mark.slurmdbd,
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.django_db(transaction=True),
]
LONG_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = AccountedCluster(Path(tempfile.mkdtemp(prefix="gpucoord-slurm-", dir="/var/tmp")))
    try:
        yield made.start()
    finally:
        made.stop()


def test_gpus_are_counted_and_the_end_of_a_forgotten_job_is_known(
    scheduler: Scheduler, slurm: Cluster, ann: User
) -> None:
    engine = engine_of(settings.CONFIG)
    job = scheduler.run_to(submit(ann, "exit 3", Requirement(gpus=2)), within_s=LONG_S)
    ref = attempt_of(job).engine_ref
    assert "gres/gpu=2" in slurm.run("scontrol", "show", "job", ref)
    of_slurm = engine.allocation(ref)
    assert of_slurm is not None
    assert of_slurm.gpus == 2
    assert [node.gpus for node in engine.nodes()] == [2, 2]
    state = ("sacct", "-n", "-P", "-X", "-j", ref, "-o", "State")
    slurm.wait_for(lambda: "FAILED" in slurm.run(*state), LONG_S, "the end is in the accounting")

    slurm.kill_part("slurmctld")
    slurm.start_part("slurmctld", "-c")
    slurm.wait_until_up()

    assert "Invalid job id" in slurm.run("scontrol", "show", "job", ref)
    allocation = engine.allocation(ref)
    assert allocation is not None
    assert (allocation.word, allocation.exit_code, allocation.signal) == ("FAILED", 3, 0)
