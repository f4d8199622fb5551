"""Slurm in the passes of a host: its step from the settings, and jobs of a former setting."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from django.conf import settings

from monitor.runtime.facts import Guard
from scheduler.dispatch.steps.engine_answers import open_tasks
from scheduler.dispatch.steps.engine_tasks import EngineStep
from scheduler.execution.engines.policy.requests import EngineRules
from scheduler.execution.engines.slurm import engine_of as slurm_engine
from scheduler.execution.steps.specs import SpecWriter
from scheduler.models import EngineStatus


def slurm_step(guard: Guard, specs: SpecWriter, *, accepts: bool = True) -> EngineStep:
    """Follows the jobs in Slurm, from the settings."""
    config = settings.CONFIG
    rules = EngineRules(
        options=tuple(config.slurm_options),
        gpu_types=config.slurm_gpu_types,
        grace_s=config.cancel_grace_s,
    )
    every = timedelta(seconds=config.slurm_interval_s)
    return EngineStep(
        guard, config.node, specs, slurm_engine(config), rules, every, accepts=accepts
    )


def former_engine(guard: Guard, specs: SpecWriter) -> FormerEngine:
    return FormerEngine(
        guard, settings.CONFIG.node, lambda: slurm_step(guard, specs, accepts=False)
    )


class FormerEngine:
    """Jobs that the host handed to Slurm before its setting `engine` was changed.

    Those that run are followed to their end; those that wait are withdrawn, and then wait here.
    When none is left, the state of Slurm is removed from the pages.
    """

    def __init__(self, guard: Guard, host: str, build: Callable[[], EngineStep]) -> None:
        self._guard = guard
        self._host = host
        self._build = build
        self._engine: EngineStep | None = None
        self._is_over = False

    def step(self, now: datetime) -> int:
        """Returns how many of its tasks moved."""
        if self._is_over:
            return 0
        if not open_tasks(self._host).exists():
            self.close()
            with self._guard():
                EngineStatus.objects.filter(host=self._host).delete()
            self._is_over = True
            return 0
        if self._engine is None:
            self._engine = self._build()
        return self._engine.step(now)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
