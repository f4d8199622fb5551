"""A step that is replaced at each tick decides as one that stays: what it needs is in rows."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from monitor.facts.readings import GpuProcess, GpuSweep
from monitor.gpus.rows import snapshot as snapshots
from monitor.gpus.sampling.step import Sampler
from monitor.journal.rows import events
from monitor.models import Incident
from scheduler.dispatch.steps.controller import (
    ConstraintWatch,
    Controller,
    IdleResources,
    IncidentWatch,
    Part,
)
from scheduler.dispatch.steps.dispatcher import Dispatcher
from scheduler.execution.steps.executor import Executor
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts.jobs import NewJob, Requirement
from scheduler.facts.plans import PlanPolicy
from scheduler.jobs.rows import changes as job_store
from scheduler.limits.throttle.step import ThrottleStep
from scheduler.models import Attempt, Job
from scheduler.runner import attempt_files, files
from scheduler.runner.attempt_files import own_claim
from scheduler.runner.spec import Started
from tests import jobs_made
from tests.builders import GIB, NOW, gpu, process, snapshot
from tests.monitor.gpus.sampling.test_sampler import QuietMachine, ScriptedProbe

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
BOTH = pytest.mark.parametrize("replaced", [False, True], ids=["kept", "replaced"])
T = Callable[[], Any]


class Steps:
    """The same step object for all ticks, or a new one for each."""

    def __init__(self, build: T, *, replaced: bool) -> None:
        self._build, self._replaced = build, replaced
        self._made: Any = None

    def step(self, now: datetime, **named: Any) -> Any:
        if self._made is None or self._replaced:
            self._made = self._build()
            if hasattr(self._made, "open") and not isinstance(self._made, Executor):
                self._made.open()
        return self._made.step(now, **named)


def at(second: float) -> datetime:
    return NOW + timedelta(seconds=second)


def _orphaned(owner: User, data: Path) -> Attempt:
    """A running job whose runner was killed."""
    attempt = jobs_made.running(owner).attempts.get()
    (data / "jobs").mkdir(exist_ok=True)
    folder = files.attempt_folder(data, attempt.job_id, 1)
    files.make_folder(folder)
    dead = own_claim(attempt.nonce, runner=True).to_json() | {"start_ticks": 1}
    files.write_json(folder / files.CLAIMED, dead)
    started = dict.fromkeys(Started.__dataclass_fields__, 1) | {
        "nonce": attempt.nonce, "account": "x", "boot_id": dead["boot_id"], "started_at": 1.0,
    }  # fmt: skip
    files.write_json(folder / files.STARTED, started)
    Attempt.objects.filter(pk=attempt.pk).update(boot_id=dead["boot_id"], runner_start_ticks=1)
    return attempt


@BOTH
def test_orphans_get_sigterm_once_and_sigkill_after_the_grace(
    alice: User, data: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    attempt = _orphaned(alice, data)
    sent: list[tuple[int, int]] = []
    second = 0

    def end_orphans(_started: Started, number: int | None) -> int:
        if number is not None:
            sent.append((second, number))
        return 0 if signal.SIGKILL in [number for _, number in sent] and number is None else 1

    monkeypatch.setattr(attempt_files, "end_orphans", end_orphans)
    specs = SpecWriter(data=data, run_as="service", grace_s=60, wake_folder=data / "run")
    steps = Steps(lambda: Executor(transaction.atomic, "gpubox", specs), replaced=replaced)
    for second in range(70):
        steps.step(at(second))

    assert sent[:2] == [(0, signal.SIGTERM), (60, signal.SIGKILL)]
    assert Attempt.objects.get(pk=attempt.pk).orphans_stopping_at == NOW


def _restart_job_numbers() -> None:
    """PostgreSQL does not roll back sequences."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ALTER SEQUENCE scheduler_job_id_seq RESTART WITH 1000000")


def _same(run: Callable[[bool], Any]) -> Any:
    """The result of the run; the same with steps that stay and with replaced ones."""
    results = []
    for replaced in (False, True):
        before = transaction.savepoint()
        _restart_job_numbers()
        results.append(run(replaced))
        transaction.savepoint_rollback(before)
    first, other = results
    assert other == first
    return first


def test_placements_and_reasons_do_not_depend_on_the_dispatcher(alice: User) -> None:
    def run(replaced: bool) -> Any:
        steps = Steps(
            lambda: Dispatcher(transaction.atomic, "gpubox", PlanPolicy(cpu_jobs=1)),
            replaced=replaced,
        )
        request = Requirement(gpus=1, memory_bytes=70 * GIB)
        pairs = []
        for tick in range(90):
            now = at(60 * tick)
            used = [(74 - tick % 7) * GIB, 0 if 10 <= tick < 12 else 75 * GIB]
            shown = [gpu(n, memory_used_bytes=bytes_) for n, bytes_ in enumerate(used)]
            held = [process(900 + n, on=n, memory_bytes=b) for n, b in enumerate(used) if b]
            snapshots.record(snapshot(shown, held, seq=tick + 1, at=now))
            if tick in (0, 3):
                job_store.submit(NewJob(command="true", requirement=request), alice, now)
            placed = [a.gpu_uuids for a in steps.step(now)]
            pairs.append((placed, [job.blockers for job in Job.objects.order_by("pk")]))
        return pairs

    pairs = _same(run)
    assert sum(len(placed) for placed, _ in pairs) == 1
    # The figures of a reason are stored again after an hour.
    assert len({json.dumps(reasons[-1]) for _, reasons in pairs}) >= 3


def test_events_states_and_attempts_do_not_depend_on_the_sampler() -> None:
    def run(replaced: bool) -> Any:
        probe = ScriptedProbe(GpuSweep())
        steps = Steps(
            lambda: Sampler(transaction.atomic, probe, QuietMachine()),  # type: ignore[arg-type]
            replaced=replaced,
        )
        shots = []
        for second in range(120):
            shown = (gpu(0, temperature_c=min(30.0 + second, 95.0)), gpu(1))
            probe.sweep = GpuSweep(gpus=shown[:1] if 8 <= second < 12 else shown)
            if 40 <= second < 110:
                probe.sweep = GpuSweep(problem="The driver is gone.", remedy="Load it.")
            shots.append(steps.step(at(second)))
        events_seen = [(event.at, event.kind, event.text) for event in events.recent(100)]
        return probe.reads, shots, events_seen

    reads, shots, events_seen = _same(run)
    assert reads < 80
    assert [shot.seq for shot in shots] == list(range(1, 121))
    assert {"GPU_LOST", "NVML_UNAVAILABLE", "NVML_AVAILABLE"} <= {
        kind for _, kind, _ in events_seen
    }


def test_incidents_constraints_and_throttling_do_not_depend_on_the_controller(
    alice: User,
) -> None:
    def parts() -> tuple[Part, ...]:
        return (
            ConstraintWatch("gpubox", "/data"),
            IncidentWatch("gpubox"),
            ThrottleStep("gpubox"),
            IdleResources("gpubox"),
        )

    def run(replaced: bool) -> Any:
        steps = Steps(
            lambda: Controller(transaction.atomic, "gpubox", lambda _: None, parts()),
            replaced=replaced,
        )
        waits = NewJob(command="true", requirement=Requirement(gpus=2, exclusive=True))
        job_store.submit(waits, alice, NOW)
        probe = ScriptedProbe(GpuSweep(), name="simulated")
        sampling = Sampler(transaction.atomic, probe, QuietMachine())  # type: ignore[arg-type]
        sampling.open()
        for tick in range(200):
            now = at(5 * tick)
            busy = GpuProcess(gpu_uuid=gpu(0).uuid, pid=42, sm_pct=97.0, memory_bytes=GIB)
            shown = gpu(0, utilization_pct=97.0), gpu(1)
            probe.sweep = GpuSweep(gpus=shown, processes=(busy,), is_fresh=True)
            sampling.step(now)
            findings = steps.step(now).results
            assert not [fault for fault in findings.values() if isinstance(fault, Exception)]
        events_seen = [(event.at, event.kind, event.text) for event in events.recent(100)]
        rows = Incident.objects.order_by("pk").values_list("rule", "since_at", "severity")
        return events_seen, list(rows)

    events_seen, _ = _same(run)
    assert events_seen
