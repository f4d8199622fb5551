"""Use that moves between GPUs, from the sweeps of the sampler to the row of its incident."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import transaction

from monitor.facts.incidents import SUSTAINED
from monitor.facts.readings import GpuProcess, GpuSweep, ProcessIdentity, UseSource
from monitor.models import Incident, PolicyValues
from scheduler.dispatch.steps.controller import Controller, IncidentWatch
from tests.builders import GIB, NOW, gpu
from tests.monitor.gpus.sampling.test_sampler import QuietMachine, ScriptedProbe, at, sampler

pytestmark = pytest.mark.django_db

GPUS = 24
# The processes in a second: (pid, GPU, percent).
Use = Callable[[int], list[tuple[int, int, float]]]


def run(seconds: int, use: Use) -> list[Incident]:
    """Sweep each second and judge each 5 s, with a new controller each minute."""
    PolicyValues.objects.create(name="hogs", values={"sustained_minutes": 2.0})
    pids = {pid for second in range(seconds) for pid, _, _ in use(second)}
    people = (
        ProcessIdentity(
            pid=pid, start_ticks=pid, created_at=NOW, uid=1001, user="alice", program="python"
        )
        for pid in pids
    )
    probe = ScriptedProbe(GpuSweep(gpus=()))
    sampling = sampler(probe, QuietMachine(*people))
    for second in range(seconds):
        if second % 60 == 0:
            parts = (IncidentWatch("box"),)
            controller = Controller(transaction.atomic, "box", lambda chore: None, parts)
        busy = {on: pct for _, on, pct in use(second)}
        probe.sweep = GpuSweep(
            gpus=tuple(gpu(index, utilization_pct=busy.get(index, 0.0)) for index in range(GPUS)),
            processes=tuple(
                GpuProcess(
                    gpu_uuid=gpu(on).uuid,
                    pid=pid,
                    memory_bytes=GIB,
                    sm_pct=pct,
                    source=UseSource.PROCESSES_INFO,
                )
                for pid, on, pct in use(second)
            ),
        )
        sampling.step(at(second))
        if second % 5 == 4:
            result = controller.step(at(second)).results["hogs"]
            assert not isinstance(result, Exception), result
    return list(Incident.objects.filter(rule=SUSTAINED).order_by("id"))


def hopper(*, leaves: bool, pids: int, dwell: int = 30, over: int = 3) -> Use:
    """98 % of one GPU, on the next one after `dwell` seconds; idle on the others, or not there."""

    def use(second: int) -> list[tuple[int, int, float]]:
        now = second // dwell % over
        return [
            (500 + on % pids, on, 98.0 if on == now else 0.0)
            for on in range(over)
            if on == now or not leaves
        ]

    return use


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("pids", [1, 3])
def test_use_that_moves_each_half_minute_is_sustained_use(leaves: bool, pids: int) -> None:
    (row,) = run(240, hopper(leaves=leaves, pids=pids))
    assert "% on GPUs 0, 1 and 2 in turn for" in row.text
    assert row.mean_pct is not None
    assert row.mean_pct > 94
    assert 115 <= (row.opened_at - NOW).total_seconds() <= 140


def test_use_that_moves_is_told_beside_a_gpu_that_the_user_keeps_busy() -> None:
    moves = hopper(leaves=False, pids=1)
    stayed, moved = run(240, lambda second: [*moves(second), (500, 7, 95.0)])
    assert (stayed.gpu_id, moved.key) == (gpu(7).uuid, "alice|moves")
    assert "on GPUs 0, 1 and 2 in turn for" in moved.text


def test_steady_use_of_two_gpus_at_half_is_not_told_as_moving() -> None:
    assert run(240, lambda second: [(500, 0, 49.0), (500, 1, 49.0)]) == []
