"""Somebody comes to a GPU that a real job is on, and goes again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from msgspec.structs import replace

from monitor.facts.readings import ProcessReading, Snapshot
from monitor.gpus.policy.presence import PresencePolicy
from monitor.gpus.rows import snapshot as snapshots
from monitor.gpus.sampling import step as presence_step
from monitor.thresholds import rows as thresholds
from scheduler.facts.jobs import Requirement, YieldOptions
from tests.builders import GIB, gpu, host, process, snapshot
from tests.pace import Stopwatch
from tests.processes.scheduling import Scheduler, attempt_of, log_of, reloaded, submit

pytestmark = [
    pytest.mark.processes,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("data"),
]
# It saves when asked, and goes on from there.
WORKS = """
if [ -f "$GPUCOORD_CHECKPOINT_DIR/half" ]; then echo resumed; exit 0; fi
echo begun
while [ ! -f "$GPUCOORD_YIELD_FILE" ]; do sleep 0.05; done
touch "$GPUCOORD_CHECKPOINT_DIR/half"; echo saved; exit 85
"""
OBSTINATE = "trap '' TERM; echo begun; while true; do sleep 0.05; done"


class Desktop:
    """One GPU, looked at as often as the scheduler steps; `late` lets its clock run ahead."""

    def __init__(self, node: str) -> None:
        self.scheduler = Scheduler()
        self._node = node
        self._last: Snapshot | None = None
        self.there: tuple[ProcessReading, ...] = ()

    def look(self) -> None:
        used = sum(p.memory_bytes or 0 for p in self.there)
        latest = snapshot(
            [gpu(0, memory_used_bytes=used)],
            self.there,
            at=self.scheduler.now(),
            host=host(name=self._node),
        )
        self._last, _ = presence_step.watched(
            latest, self._last, thresholds.current(PresencePolicy)
        )
        snapshots.record(self._last)

    def pass_by(self, seconds: float) -> None:
        """One look and one pass a second, without waiting for them."""
        for _ in range(round(seconds)):
            self.scheduler.late += timedelta(seconds=1)
            self.look()
            self.scheduler.step()


@pytest.fixture
def desktop(settings: Any, data: Path) -> Iterator[Desktop]:
    config = settings.CONFIG
    settings.CONFIG = replace(config, profile="desktop", data=data)
    desktop = Desktop(config.node)
    desktop.look()
    yield desktop
    desktop.scheduler.close()


def game() -> ProcessReading:
    return process(program="game", user="dana", kinds="G", memory_bytes=4 * GIB)


def begun(desktop: Desktop, owner: User, command: str, **options: Any) -> Any:
    request = Requirement(gpus=1, memory_bytes=GIB)
    job = submit(owner, command, request, yield_options=YieldOptions(**options))
    desktop.scheduler.run_until(lambda: "begun" in log_of(job))
    return job


def test_a_job_saves_itself_waits_and_goes_on_when_they_have_gone(
    desktop: Desktop, root: User
) -> None:
    job = begun(desktop, root, WORKS)
    came_at, watch = desktop.scheduler.now(), Stopwatch()
    desktop.there = (game(),)
    desktop.pass_by(4)

    desktop.scheduler.run_to(job, "queued")
    left_at = attempt_of(job).ended_at
    assert left_at is not None
    assert left_at - came_at < timedelta(seconds=6 + watch.wall_s - watch.seconds)
    assert "saved" in log_of(job)

    desktop.pass_by(10)
    waits = reloaded(job)
    assert waits.state == "queued"
    assert "OwnerPresent" in [blocker["code"] for blocker in waits.blockers]
    assert waits.requeues == 0

    desktop.there = ()
    desktop.pass_by(62)
    desktop.scheduler.run_to(job)
    assert reloaded(job).outcome == "succeeded"
    assert "resumed" in log_of(job, 2)


def test_a_young_job_that_does_not_listen_is_gone_within_six_seconds(
    desktop: Desktop, root: User
) -> None:
    job = begun(desktop, root, OBSTINATE, requeue=True)
    watch = Stopwatch()
    desktop.there = (game(),)
    # The runner's clock does not run ahead: it kills when its own reaches the deadline.
    desktop.pass_by(3)

    desktop.scheduler.run_to(job, "queued")

    assert watch.seconds < 6
