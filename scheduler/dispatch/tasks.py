"""Assembles the controller of this host for its loop."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings

from monitor import tasks
from monitor.incidents.alerts.steps import AlertWriter
from monitor.runtime.policy import Guard
from monitor.runtime.rows import extensions
from scheduler.disk.steps import DiskWatch
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
from scheduler.dispatch.steps.enforcement import Enforcement
from scheduler.dispatch.steps.yields import HotGpus, LostGpus
from scheduler.execution.steps.gpu_closures import LockClaims, LockFiles
from scheduler.execution.steps.hosts import BackgroundNiceness, HostWatch
from scheduler.fair_share import rows as fair_share
from scheduler.jobs.notifications.step import JobNotifications
from scheduler.limits.quotas.step import Charging
from scheduler.limits.throttle.step import ThrottleStep
from scheduler.queue.sizing.step import AttemptUses
from scheduler.runner.actions import ProcessControl

IDLE_WORK = "scheduler.submission.idle_work.step:IdleWork"
TERMINALS = "scheduler.terminals.step:IdleTerminals"


def build(guard: Guard) -> Controller:
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
