"""Requests for another engine, whose nodes gpucoord may not monitor."""

from __future__ import annotations

from typing import Any

import pytest

from monitor.gpus.rows import snapshot as snapshots
from scheduler.models import EngineStatus
from scheduler.submission.intake import steps
from scheduler.submission.intake.steps import UnableToSubmit
from tests.builders import GIB, NOW, host, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


@pytest.fixture(autouse=True)
def submit_host() -> None:
    """A small host without GPUs, and its Slurm with two nodes."""
    reading = host(name="login", cpu_count=2, memory_total_bytes=8 * GIB)
    snapshots.record(snapshot([], host=reading, at=NOW, probe="none"))
    nodes = [{"name": "n1", "gpus": 2}, {"name": "n2", "gpus": 4}]
    EngineStatus.objects.create(host="login", engine="slurm", since_at=NOW, nodes=nodes)


def refused(**request: Any) -> dict[str, str]:
    try:
        steps.checked({"command": "true", **request}, NOW)
    except UnableToSubmit as error:
        return {refusal.field: refusal.text for refusal in error.refusals}
    return {}


def test_a_submit_host_without_gpus_takes_jobs_for_the_nodes_of_its_engine() -> None:
    assert refused(gpus=4) == {}
    assert refused(gpus=1, gpu_memory="80GiB", cpus=64, memory="500GiB", host="login") == {}


def test_more_gpus_than_any_node_has_are_refused_with_the_numbers() -> None:
    assert refused(gpus=5) == {"gpus": "You ask for 5 GPUs; the largest node has 4."}
    EngineStatus.objects.update(nodes=[{"name": "n1", "gpus": 2}, {"name": "n2", "gpus": None}])
    assert refused(gpus=5) == {}


def test_what_no_engine_could_run_is_refused() -> None:
    assert set(refused(gpus=0, gpu_memory="1GiB")) == {"gpu_memory"}
    assert set(refused(gpus=1, memory="1KiB")) == {"memory"}


def test_without_an_engine_the_host_itself_must_have_the_gpus() -> None:
    EngineStatus.objects.all().delete()

    assert "this machine has none" in refused(gpus=1)["gpus"]
    assert set(refused(gpus=0, memory="500GiB")) == {"memory"}


def test_a_job_for_another_host_needs_the_gpus_there() -> None:
    snapshots.record(snapshot([], host=host(name="east"), at=NOW, probe="none"))

    assert "this machine has none" in refused(gpus=1, host="east")["gpus"]
