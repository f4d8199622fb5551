"""Bounds of jobs, when jobs step back, and the texts about it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from monitor.facts.readings import HostReading
from monitor.models import Gpu, PolicyValues
from scheduler.execution import probes as capabilities_probe
from scheduler.execution.policy import BoundsPolicy, is_busy, refusals
from scheduler.execution.steps import hosts as host_capabilities
from scheduler.execution.steps.specs import ConfinementLimits
from scheduler.facts.jobs import NewJob
from scheduler.models import Attempt, HostCapability, Job
from scheduler.runner.confine import cgroups
from scheduler.runner.confine.cgroups import CgroupParent
from scheduler.runner.confine.confinement import DutyCycle
from tests import jobs_made
from tests.builders import GIB, NOW

V1 = CgroupParent(
    kind="v1",
    by_controller={
        name: f"/c/{name}/gpucoord" for name in ("cpu", "memory", "pids", "devices", "")
    },
    can=frozenset({"cpu", "memory", "pids", "freeze", "kill", "devices"}),
)


@pytest.mark.parametrize(
    ("cpu", "io", "was", "busy"),
    [
        (95.0, 0.0, False, True),
        (80.0, 0.0, False, False),
        (80.0, 0.0, True, True),
        (70.0, 0.0, True, False),
        (10.0, 30.0, False, True),
        (10.0, 15.0, True, True),
        (10.0, 5.0, True, False),
        (10.0, None, True, False),
        (None, None, False, False),
        (None, 5.0, True, True),
    ],
)
def test_a_machine_is_busy_until_it_is_clearly_not(
    cpu: float | None, io: float | None, was: bool, busy: bool
) -> None:
    assert is_busy(cpu, io, was_busy=was) is busy


def test_a_capped_job_runs_the_first_part_of_each_period() -> None:
    duty_cycle = DutyCycle(30, 1.0)
    phases = [duty_cycle.at(100 + step / 100)[0] for step in range(1000)]

    assert duty_cycle.caps
    assert phases[:30] == [False] * 30
    assert 0.68 < sum(phases) / len(phases) < 0.72


@pytest.mark.parametrize("share", [None, 100])
def test_a_job_that_may_have_all_is_never_paused(share: int | None) -> None:
    assert not DutyCycle(share, 1.0).caps


def test_it_is_told_when_to_look_again() -> None:
    duty_cycle = DutyCycle(25, 2.0)

    assert duty_cycle.at(10.0) == (False, 10.5)
    assert duty_cycle.at(10.6) == (True, 12.0)
    assert duty_cycle.at(12.0) == (False, 12.5)


def test_a_gpus_device_file_is_known_by_its_address(tmp_path: Any) -> None:
    for name, minor in (("0000:3b:00.0", 2), ("0000:d8:00.0", 0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "information").write_text(f"Model: X\nDevice Minor: \t {minor}\n")
    (tmp_path / "broken").mkdir()

    assert cgroups.minors(tmp_path) == {"0:3b:00.0": 2, "0:d8:00.0": 0}
    assert cgroups.short_pci_id("00000000:3B:00.0") == "0:3b:00.0"


def test_what_works_here_is_said_in_words() -> None:
    described = capabilities_probe.describe(
        V1, minors=8, mps=None, locks="/tmp", policy=BoundsPolicy()
    )

    assert {mean.name: mean.active for mean in described} == {
        "cgroup": True,
        "hiding": True,
        "share": True,
        "mps": False,
        "locks": True,
    }
    assert described[0].text == ("cgroup version 1; limits: cpu, memory, pids; kill: whole group")


def test_what_does_not_is_said_too() -> None:
    nowhere = CgroupParent(problem="v2: Permission denied")
    described = capabilities_probe.describe(
        nowhere, minors=8, mps=None, locks=None, policy=BoundsPolicy()
    )
    text = {mean.name: mean.text for mean in described}

    assert "v2: Permission denied" in text["cgroup"]
    assert "which a job can change" in text["hiding"]
    assert "SIGSTOP" in text["share"]


@pytest.mark.django_db
def test_only_what_changes_is_written_down() -> None:
    described = capabilities_probe.describe(
        V1, minors=0, mps=None, locks="/tmp", policy=BoundsPolicy()
    )

    assert host_capabilities.record("gpubox", described, NOW) == 5
    assert host_capabilities.record("gpubox", described, NOW) == 0
    assert HostCapability.objects.count() == 5
    ((host, rows),) = host_capabilities.listed()
    assert (host, [word for _, word, _ in rows]) == (
        "gpubox",
        ["active", "off", "active", "off", "active"],
    )


@pytest.fixture
def attempt(alice: User, db: None) -> Attempt:
    """Of a job that has GPU 1 of two, and may take 30 % of its time."""
    for index in (0, 1):
        Gpu.objects.create(
            uuid=f"GPU-{index}",
            host="gpubox",
            index=index,
            pci_id=f"00000000:0{index}:00.0",
            state_since_at=NOW,
            first_seen_at=NOW,
            last_seen_at=NOW,
        )
    jobs_made.running(alice)
    Job.objects.update(share_pct=30)
    return Attempt(job=Job.objects.get(), number=1, gpu_uuids=["GPU-1"])


def limits_of(tmp_path: Any, **changes: Any) -> ConfinementLimits:
    known = {"0:00:00.0": 0, "0:01:00.0": 1}
    return ConfinementLimits(
        **({"host": "gpubox", "data": tmp_path, "lock_folder": None, "minors": known} | changes)
    )


def test_a_job_keeps_to_its_share_and_sees_its_gpu_alone(attempt: Attempt, tmp_path: Any) -> None:
    limits = limits_of(tmp_path, place=V1, host_memory_bytes=64 * 1024**3).bounds(attempt)

    assert (limits.share_pct, limits.hidden, limits.cgroup) == (
        30,
        [[195, 0]],
        ["/c/memory/gpucoord", "/c/pids/gpucoord", "/c/devices/gpucoord", "/c//gpucoord"],
    )
    assert (limits.gpus, limits.lock_folder) == ([1], "")


def test_a_job_gets_what_it_asked_for_but_no_more_than_each_may_have(
    attempt: Attempt, tmp_path: Any
) -> None:
    PolicyValues.objects.create(name="bounds", values={"cpus": 4.0, "memory_gib": 8.0})
    attempt.job.cpus, attempt.job.memory_bytes = 2.0, 16 * GIB

    limits = limits_of(tmp_path, place=V1, host_memory_bytes=64 * 1024**3).bounds(attempt)

    assert (limits.cpus, limits.memory_bytes) == (2.0, 8 * GIB)
    assert {"/c/cpu/gpucoord", "/c/memory/gpucoord"} <= set(limits.cgroup)


@pytest.mark.parametrize(
    ("cpus", "gib", "says"),
    [
        (8.0, None, ["You ask for 8 CPUs; a job gets at most 4 here."]),
        (None, 20, ["You ask for 20 GiB of host memory; a job gets at most 16 GiB here."]),
        (0.001, None, ["Nothing runs with 0.001 CPUs."]),
        (4.0, 16, []),
        (None, None, []),
    ],
)
def test_more_than_a_job_can_have_is_refused(
    cpus: float | None, gib: int | None, says: list[str]
) -> None:
    new = NewJob(command="true", cpus=cpus, memory_bytes=gib and gib * GIB)
    host = HostReading(name="gpubox", cpu_count=64, memory_total_bytes=16 * GIB)

    assert [refusal.text for refusal in refusals(new, BoundsPolicy(cpus=4.0), [host])] == says


def test_where_the_host_is_not_known_nothing_is_refused() -> None:
    new = NewJob(command="true", cpus=999.0, memory_bytes=999 * GIB)

    assert refusals(new, BoundsPolicy(), [HostReading(name="gpubox")]) == []
    assert refusals(new, BoundsPolicy(), []) == []


def test_a_start_waits_only_for_the_hierarchies_that_are_needed() -> None:
    assert V1.for_({"cpu"}) == ("/c/cpu/gpucoord", "/c//gpucoord")
    alone = CgroupParent(kind="v1", by_controller={"cpu": "/c/cpu", "freezer": "/c/freezer"})
    assert alone.for_(set()) == ("/c/freezer",)
    together = CgroupParent(kind="v1", by_controller={"cpu": "/c/both", "memory": "/c/both"})
    assert together.for_({"cpu", "memory"}) == ("/c/both",)


def test_where_mps_runs_it_caps_the_share(attempt: Attempt, tmp_path: Any) -> None:
    by_mps = limits_of(tmp_path, mps="/run/mps")

    assert by_mps.bounds(attempt).share_pct is None
    assert by_mps.variables(attempt)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert limits_of(tmp_path).variables(attempt) == {}


def test_nothing_is_hidden_from_a_job_whose_own_gpu_is_not_known(
    attempt: Attempt, tmp_path: Any
) -> None:
    assert limits_of(tmp_path, minors={"0:00:00.0": 0}).bounds(attempt).hidden == []


def test_a_job_without_a_gpu_sees_none(attempt: Attempt, tmp_path: Any) -> None:
    attempt.gpu_uuids = []

    limits = limits_of(tmp_path).bounds(attempt)
    assert (limits.hidden, limits.share_pct) == ([[195, 0], [195, 1]], None)
