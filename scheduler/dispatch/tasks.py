"""Doors: build the controller of this host and the pass of the scheduler, for their loops."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import connection
from django.utils import timezone

from monitor import tasks
from monitor.incidents.alerts.steps import AlertWriter
from monitor.runtime.policy import Guard, Step
from monitor.runtime.rows import extensions
from monitor.runtime.rows.database import FilledTables, keep_commits_synced
from monitor.runtime.rows.extensions import part, step_of
from monitor.runtime.rows.wakeups import socket_folder
from scheduler.disk.steps import DiskWatch
from scheduler.dispatch.inputs import plan_policy
from scheduler.dispatch.steps.controller import (
    ConstraintWatch,
    Controller,
    FileRetention,
    IdleResources,
    IncidentWatch,
    OtherTasks,
    Part,
    Predictions,
)
from scheduler.dispatch.steps.dispatcher import Dispatcher
from scheduler.dispatch.steps.enforcement import Enforcement
from scheduler.dispatch.steps.yields import EvictionStep, HotGpus, LostGpus, WithdrawalStep
from scheduler.execution.engines.facts import EngineName
from scheduler.execution.policy import ENDINGS, Action
from scheduler.execution.steps.executor import Executor
from scheduler.execution.steps.gpu_closures import LockClaims, LockFiles
from scheduler.execution.steps.hosts import BackgroundNiceness, HostWatch
from scheduler.execution.steps.progress import ProgressStep
from scheduler.execution.steps.specs import ConfinementLimits, SpecWriter
from scheduler.fair_share import rows as fair_share
from scheduler.jobs.notifications.step import JobNotifications
from scheduler.jobs.steps import AttemptUses
from scheduler.limits.quotas.step import Charging
from scheduler.limits.throttle.step import ThrottleStep
from scheduler.models import EngineStatus, ExclusiveRun, ModelService
from scheduler.runner.actions import ProcessControl
from scheduler.submission.intake import steps

if TYPE_CHECKING:
    from scheduler.dispatch.steps.engine_leaders import FormerEngine, LeaderCheck
    from scheduler.dispatch.steps.engine_tasks import EngineStep
    from scheduler.dispatch.steps.exclusive_batches import ExclusiveBatches
    from scheduler.dispatch.steps.model_evictions import ModelPass
    from scheduler.submission.batches.step import BatchStep


IDLE_WORK = "scheduler.submission.idle_work.step:IdleWork"
TERMINALS = "scheduler.terminals.step:IdleTerminals"


def build_controller(guard: Guard) -> Controller:
    """The controller of this host."""
    config = settings.CONFIG
    parts: tuple[Part, ...] = (
        ConstraintWatch(config.node, str(settings.DATA)),
        DiskWatch(config.node, Path(settings.DATA), config.checkpoints, tasks.queue),
        Charging(config.node, config.time_zone, fair_share.owed_seconds),
        IncidentWatch(config.node),
        AttemptUses(config.node),
        ThrottleStep(config.node),
        LostGpus(config.node),
        HotGpus(config.node),
        IdleResources(config.node),
        *(each(config.node) for each in extensions.parts(IDLE_WORK, TERMINALS)),
        Enforcement(config.node, ProcessControl(Path(settings.DATA) / "run" / "pacing")),
        AlertWriter(tasks.queue),
        JobNotifications(config.node, tasks.queue),
        LockClaims(config.node, settings.LOCK_FOLDER),
        LockFiles(config.node, settings.LOCK_FOLDER),
        BackgroundNiceness(config.node),
        FileRetention(config.node, tasks.queue),
        Predictions(tasks.queue),
        OtherTasks(config.node),
        HostWatch(config.node, Path(settings.DATA)),
    )
    return Controller(guard, config.node, tasks.queue, parts)


STEPS = "scheduler.dispatch.steps"
BATCHES = "scheduler.submission.batches.step:BatchStep"


def build_scheduler(guard: Guard) -> Step:
    """The scheduler's step for this host, from the settings."""
    config = settings.CONFIG
    limits = ConfinementLimits(
        host=config.node,
        data=settings.DATA,
        lock_folder=settings.LOCK_FOLDER,
        host_memory_bytes=plan_policy().host_memory_bytes,
    )
    limits.open(timezone.now())
    specs = SpecWriter(
        data=settings.DATA,
        run_as=config.run_as,
        grace_s=config.cancel_grace_s,
        wake_folder=socket_folder(),
        checkpoints=config.checkpoints,
        closed=steps.closed_paths(),
        limits=limits,
        shares_checkpoints=config.shared_checkpoints or connection.vendor == "sqlite",
    )
    if config.engine != EngineName.LOCAL.value:
        return _engine_pass(guard, specs, limits)
    return SchedulerPass(
        EvictionStep(guard, config.node),
        Dispatcher(guard, config.node, plan_policy()),
        Executor(guard, config.node, specs),
        CapabilityReporter(guard, limits),
        WithdrawalStep(guard, config.node),
        step_of(f"{STEPS}.model_evictions:ModelPass")(guard, config.node, plan_policy()),
        ProgressStep(guard, config.node, specs),
        step_of(BATCHES)(guard, config.node, specs),
        step_of(f"{STEPS}.exclusive_batches:ExclusiveBatches")(guard, config.node, plan_policy()),
        step_of(f"{STEPS}.engine_leaders:LeaderCheck")(guard, config.node),
        step_of(f"{STEPS}.engine_leaders:former_engine")(guard, specs),
    )


def _engine_pass(guard: Guard, specs: SpecWriter, limits: ConfinementLimits) -> EnginePass:
    """The step of a host that runs no new jobs itself."""
    config = settings.CONFIG
    slurm_step = part(f"{STEPS}.engine_leaders:slurm_step")
    return EnginePass(
        Executor(guard, config.node, specs),
        slurm_step(guard, specs) if config.engine == EngineName.SLURM.value else None,
        CapabilityReporter(guard, limits),
        ProgressStep(guard, config.node, specs),
        step_of(BATCHES)(guard, config.node),
        step_of(f"{STEPS}.engine_leaders:LeaderCheck")(guard, config.node),
        step_of(f"{STEPS}.engine_leaders:former_engine")(guard, specs),
    )


class EnginePass:
    """Jobs that this host still runs itself are followed to their end; the engine gets new ones."""

    def __init__(
        self,
        executor: Executor,
        engine: EngineStep | None,
        reporter: CapabilityReporter,
        progress: ProgressStep,
        batches: BatchStep,
        leaders: LeaderCheck,
        former: FormerEngine,
    ) -> None:
        self._former = former
        self._executor = executor
        self._engine = engine
        self._reporter = reporter
        self._progress = progress
        self._batches = batches
        self._leaders = leaders

    def open(self) -> None:
        """The runner pool is started when it is needed."""

    def step(self, now: datetime) -> dict[str, int]:
        """Returns how many attempts moved."""
        keep_commits_synced(on=False)
        moves = len(self._executor.step(now))
        # A submission must survive a power cut.
        keep_commits_synced(on=True)
        if self._engine is not None:
            self._batches.step(now)
            moves += self._engine.step(now)
        else:
            moves += self._former.step(now)
        self._leaders.step(now)
        self._reporter.step(now)
        self._progress.step(now)
        return {"moved": moves}

    def close(self) -> None:
        self._executor.close()
        if self._engine is not None:
            self._engine.close()
        self._former.close()
        keep_commits_synced(on=False)


class CapabilityReporter:
    """Stores the isolation features of this machine once."""

    def __init__(self, guard: Guard, limits: ConfinementLimits) -> None:
        self._guard = guard
        self._limits: ConfinementLimits | None = limits

    def step(self, now: datetime) -> None:
        if self._limits is not None:
            with self._guard():
                self._limits.record(now)
            self._limits = None


class SchedulerPass:
    """First end jobs, so that their GPUs can be planned; then plan; then start.

    Evictions are requested before that, because the executor passes them on to the runners.
    Model services see the ends of their jobs, and their new jobs are planned with the others.
    """

    def __init__(
        self,
        evictor: EvictionStep,
        dispatcher: Dispatcher,
        executor: Executor,
        reporter: CapabilityReporter,
        withdrawer: WithdrawalStep,
        models: ModelPass,
        progress: ProgressStep,
        batches: BatchStep,
        exclusive_batches: ExclusiveBatches,
        leaders: LeaderCheck,
        former: FormerEngine,
    ) -> None:
        self._former = former
        self._evictor = evictor
        self._dispatcher = dispatcher
        self._executor = executor
        self._reporter = reporter
        self._withdrawer = withdrawer
        self._models = models
        self._progress = progress
        self._batches = batches
        self._exclusive_batches = exclusive_batches
        self._leaders = leaders
        # Instances and claims of models go with their service; jobs of engines with the engine.
        self._filled = FilledTables(ModelService, ExclusiveRun, EngineStatus)

    def open(self) -> None:
        self._executor.open()

    def step(self, now: datetime) -> dict[str, int]:
        """Returns how many attempts moved, and how many were placed."""
        # Set anew each time: the connection may be a new one. What the executor records is in the
        # attempts' files too, so it is not synced for itself.
        keep_commits_synced(on=False)
        self._evictor.step(now)
        moves = self._executor.step(now)
        has_models, has_exclusive_batches, has_engines = self._filled.read()
        if has_models:
            self._models.step(now)
        if has_exclusive_batches:
            self._exclusive_batches.step(now)
        if has_engines:
            # Slurm may run jobs on this host beside gpucoord.
            self._leaders.step(now)
        has_room = any(move in ENDINGS for move in moves.values())
        # A placement must survive a power cut once its process runs.
        keep_commits_synced(on=True)
        if has_engines:
            self._former.step(now)
        self._batches.step(now)
        placed = self._dispatcher.step(now, has_room=has_room)
        self._executor.start(placed, now)
        if any(attempt.job.worker_batch is not None for attempt in placed):
            # Their items are there before they have loaded.
            self._batches.step(now)
        if Action.YIELD in moves.values():
            keep_commits_synced(on=True)
            self._withdrawer.step(now)
        self._reporter.step(now)
        self._progress.step(now)
        return {"moved": len(moves), "placed": len(placed)}

    def close(self) -> None:
        self._executor.close()
        self._former.close()
        self._models.close()
        keep_commits_synced(on=False)
