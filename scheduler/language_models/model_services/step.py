"""Step: one pass over the model services: instances change their state, boot and are unloaded.

It never waits for a server: health checks run in threads, and a late answer counts at a later pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from django.conf import settings
from msgspec import Struct
from msgspec.structs import replace

from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Gpu
from monitor.runtime.policy import Guard, TimedCache
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.wakeups import wake
from scheduler.facts import model_fields as policy
from scheduler.facts.jobs import JobState, Outcome
from scheduler.facts.language_models import InstanceFact, InstanceState, ServiceFact
from scheduler.language_models.model_services import policy as lifecycle
from scheduler.language_models.model_services import rows, steps
from scheduler.language_models.model_services.policy import (
    Change,
    JobView,
    Scale,
    is_drained,
    next_step,
    scale,
)
from scheduler.language_models.model_services.probes import HealthProbe, free_port, is_taken, uid_of
from scheduler.language_models.model_services.rows import Attempts
from scheduler.models import Attempt, Job, ModelInstance, ModelService
from scheduler.runner import accounts
from scheduler.runner.accounts import Account

logger = logging.getLogger(__name__)
# Each pass checks the instances that boot; ready ones are checked this often.
CHECK_EVERY = timedelta(seconds=15)
PREDICTS_EVERY = timedelta(minutes=1)
CHECKED = (InstanceState.BOOTING, InstanceState.READY, InstanceState.DRAINING)


class ServiceView(Struct, frozen=True):
    """A service and its instances that have not ended, as rows and as facts."""

    row: ModelService
    fact: ServiceFact
    instances: tuple[tuple[ModelInstance, InstanceFact], ...]


class ModelStep:
    """`step(now)` acts on every service, and on the instances of this host."""

    def __init__(self, guard: Guard, host: str, probe: HealthProbe | None = None) -> None:
        self._guard = guard
        self._host = host
        self._probe = probe or HealthProbe()
        self._isolation = ItemIsolation(host, "models", guard)
        self._predicted: TimedCache[dict[int, int]] = TimedCache(rows.automatic, PREDICTS_EVERY)

    def close(self) -> None:
        self._probe.close()

    def step(self, now: datetime) -> list[str]:
        """Returns the names of the services that changed."""
        predicted = self._predicted(now)
        views = self._isolation.convert(
            list(rows.services()),
            lambda row: f"model {row.name}",
            lambda row: _view(row, predicted.get(row.pk, 0)),
            now,
        )
        if not views:
            return []
        attempts = rows.attempts(self._instances(views))
        health = self._probe.results(self._addresses(views, now))
        calls = self._probe.calls(self._calls(views, now))
        scripts_wait = any(view.fact.evicted_at for _, view in views) and rows.waiting_scripts()
        done = self._isolation.each(
            [view for _, view in views],
            lambda view: f"model {view.row.name}",
            lambda view: self._advance(
                view,
                attempts,
                health,
                calls,
                lambda: scale(
                    view.fact,
                    [fact for _, fact in view.instances],
                    now,
                    scripts_wait=bool(scripts_wait),
                    others_boot=steps.evicted_one_boots(view.row),
                ),
                now,
            ),
            now,
        )
        self._show_phases([view for _, view in views])
        changed = [view.row.name for view, is_changed in done if is_changed]
        if changed:
            wake("live")
            wake("models")
        return changed

    def _show_phases(self, views: list[ServiceView]) -> None:
        """Tell the sampler which ready instances answer requests, and which wait for them."""
        ready = {
            str(fact.job_id): "busy" if fact.is_busy else "ready"
            for view in views
            for _, fact in view.instances
            if fact.state is InstanceState.READY and fact.gpu_uuids and fact.host == self._host
        }
        if not ready:
            return
        shown = snapshots.phases(self._host)
        news = {ref: phase for ref, phase in ready.items() if shown.get(ref, phase) != phase}
        if news:
            with self._guard():
                for ref, phase in news.items():
                    snapshots.set_phase(ref, phase)

    def _instances(self, views: list[tuple[ModelService, ServiceView]]) -> list[ModelInstance]:
        return [row for _, view in views for row, _ in view.instances]

    def _addresses(
        self, views: list[tuple[ModelService, ServiceView]], now: datetime
    ) -> dict[int, str]:
        """The health check of each instance of this host that is due."""
        return {
            row.pk: f"{row.address}{view.row.health_path}"
            for _, view in views
            for row, fact in view.instances
            if row.host == self._host and row.port and fact.state in CHECKED
            if fact.state is InstanceState.BOOTING or _is_due(fact, now)
            if not self._is_taken(view.row, row, now)
        }

    def _is_taken(self, service: ModelService, row: ModelInstance, now: datetime) -> bool:
        """Whether another account listens on the instance's port; its row says so meanwhile."""
        uid = uid_of(service.account, settings.CONFIG.run_as)
        is_foreign = row.port is not None and is_taken(row.port, uid)
        reason = f"Another account listens on its port {row.port}."
        if is_foreign != (row.reason == reason):
            row.reason = reason if is_foreign else ""
            with self._guard():
                ModelInstance.objects.filter(pk=row.pk).update(reason=row.reason)
            if is_foreign:
                text = "Another account listens on port %s, which is of an instance of %s"
                about = {"kind": "MODEL_PORT_TAKEN", "model": service.name, "port": row.port}
                logger.warning(text, row.port, service.name, extra=about)
        return is_foreign

    def _calls(
        self, views: list[tuple[ModelService, ServiceView]], now: datetime
    ) -> dict[int, str]:
        """Where servers of this host are asked to sleep, or to wake."""
        urls = {}
        for _, view in views:
            for row, fact in view.instances:
                if row.host != self._host or not row.port or not fact.sleep_level:
                    continue
                if self._is_taken(view.row, row, now):
                    continue
                if fact.wakes:
                    urls[row.pk] = f"{row.address}{view.row.wake_path}"
                elif fact.state is InstanceState.DRAINING and is_drained(fact, now):
                    path = lifecycle.path_of(view.row.sleep_path, fact.sleep_level)
                    urls[row.pk] = f"{row.address}{path}"
        return urls

    def _advance(
        self,
        view: ServiceView,
        attempts: Attempts,
        health: Mapping[int, bool],
        calls: Mapping[int, bool],
        scaled: Callable[[], Scale],
        now: datetime,
    ) -> bool:
        """Whether anything changed. Nothing is written otherwise."""
        changes = []
        for row, fact in view.instances:
            if row.host not in ("", self._host):
                continue
            attempt = attempts.get(row.job_id or 0)
            change = next_step(
                fact,
                job_view(row, attempt),
                is_healthy=health.get(row.pk, False),
                boot_timeout_s=view.row.boot_timeout_s,
                now=now,
                call=calls.get(row.pk),
            )
            changes.append((row, fact, attempt, change))
        wanted = scaled()
        answered = {pk for pk, is_healthy in health.items() if is_healthy}
        return self._write(view, changes, wanted, answered, now)

    def _write(
        self,
        view: ServiceView,
        changes: list[tuple[ModelInstance, InstanceFact, Attempt | None, Change | None]],
        wanted: Scale,
        answered: set[int],
        now: datetime,
    ) -> bool:
        placed = [(row, attempt) for row, _, attempt, _ in changes if steps.is_news(row, attempt)]
        due = [(row, change) for row, _, _, change in changes if change is not None]
        checked = [row for row, fact, _, _ in changes if row.pk in answered]
        asleep = [
            row
            for row, fact, _, _ in changes
            if fact.state is InstanceState.SLEEPING and not rows.is_measured(row)
        ]
        if not (placed or due or checked or asleep or wanted.boot or wanted.unload):
            return False
        with self._guard():
            for row, attempt in placed:
                steps.follow(view.row, row, attempt)
            for row in checked:
                steps.note_answer(row, now)
            for row in asleep:
                steps.judge_sleep(view.row, row, now)
            for row, change in due:
                steps.apply(view.row, row, change, now)
            if not due:
                steps.apply_scale(view.row, wanted, now)
        return bool(placed or due or wanted.boot or wanted.unload)


def _view(row: ModelService, predicted: int) -> ServiceView:
    opened: list[ModelInstance] = row.open_ones  # type: ignore[attr-defined]
    instances = tuple((instance, rows.instance_fact(instance)) for instance in opened)
    return ServiceView(row, replace(rows.service_fact(row), predicted=predicted), instances)


def _is_due(fact: InstanceFact, now: datetime) -> bool:
    return fact.answered_at is None or now - fact.answered_at >= CHECK_EVERY


def job_view(row: ModelInstance, attempt: Attempt | None) -> JobView | None:
    """The job of an instance; None = it was deleted."""
    job = row.job
    if job is None:
        return None
    return JobView(
        state=JobState(job.state),
        outcome=Outcome(job.outcome) if job.outcome else None,
        leaves=attempt is not None and attempt.asked_to_leave is not None,
        problem=_problem(row, attempt),
    )


def _problem(row: ModelInstance, attempt: Attempt | None) -> str:
    """Why the job ends or ended, for a person."""
    job = row.job
    if job is None:
        return ""
    if attempt is not None and attempt.asked_to_leave is not None:
        return attempt.asked_to_leave.text
    if job.problem:
        return job.problem
    if job.signal is not None:
        return f"Its process was ended by signal {job.signal}."
    if job.exit_code is not None:
        return f"Its process ended with exit code {job.exit_code}."
    return f"{job.cancelled_by} cancelled its job." if job.cancelled_by else ""


# Input of an instance's runner: command, port and OS account.


class Launch(Struct, frozen=True):
    """The command of an instance with its placeholders filled in."""

    argv: list[str]
    port: int


def launch(attempt: Attempt) -> Launch:
    """Choose a port, store it with the instance, and fill in the command."""
    port = free_port()
    ModelInstance.objects.filter(job=attempt.job_id).update(port=port)
    snapshots.set_port(str(attempt.job_id), port)
    gpus = {gpu.uuid: gpu for gpu in Gpu.objects.filter(uuid__in=attempt.gpu_uuids)}
    first = gpus.get(attempt.gpu_uuids[0]) if attempt.gpu_uuids else None
    values = {
        "model": attempt.job.name,
        "port": str(port),
        "gpu": "" if first is None else str(first.index),
        "gpu_memory_fraction": "0" if first is None else _fraction(attempt, first),
    }
    return Launch(policy.filled_argv(attempt.job.argv, values), port)


def _fraction(attempt: Attempt, gpu: Gpu) -> str:
    """Of the declared memory; of what is free now, if the instance has the GPU alone.

    "0" where the driver does not say how much is free.
    """
    placed = attempt.job.gpu_memory_bytes
    if placed is None:
        snapshot = snapshots.newest(attempt.host)
        readings = snapshot.gpus if snapshot else ()
        reading = next(
            (gpu_reading for gpu_reading in readings if gpu_reading.uuid == gpu.uuid), None
        )
        used = reading.memory_used_bytes if reading is not None else None
        total = reading.memory_total_bytes if reading is not None else None
        if used is not None and total is not None:
            placed = max(0, total - used - policy.MARGIN_BYTES)
    return policy.memory_fraction(placed, gpu.memory_total_bytes)


def account_of(job: Job, run_as: str) -> Account:
    """The OS account of an instance. Raises MissingAccount."""
    service = job.model_service
    return accounts.account_of_service(service.account if service else "", run_as=run_as)
