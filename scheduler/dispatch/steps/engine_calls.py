"""Step: which calls of another engine were made a moment ago, and holds that are passed on."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial

from monitor.runtime.facts import Guard
from scheduler.dispatch.steps.engine_answers import EngineAnswers
from scheduler.execution.engines.background import BackgroundCalls
from scheduler.execution.engines.facts import Engine, TaskReport, TaskState
from scheduler.execution.engines.policy import slurm_reasons
from scheduler.execution.engines.policy.follow import STOP_AGAIN
from scheduler.facts.jobs import JobState
from scheduler.models import EngineTask

FAILED_LAUNCH = "launch failed"
# A list that was requested this long after a call shows what it has changed.
CALL_SETTLES = timedelta(seconds=12)
FORGET_AFTER = timedelta(minutes=1)


class RecentCalls:
    """When each call was last made. A new process repeats calls, which is harmless."""

    def __init__(self) -> None:
        self._made_at: dict[tuple[str, str], datetime] = {}

    def is_due(self, kind: str, item: str, now: datetime) -> bool:
        """Whether it was not made a moment ago; then it is now."""
        last = self.made_at(kind, item)
        if last is not None and now - last < STOP_AGAIN:
            return False
        self._made_at[kind, item] = now
        return True

    def made_at(self, kind: str, item: str) -> datetime | None:
        """None: never, or a while ago."""
        return self._made_at.get((kind, item))

    def forget(self, now: datetime) -> None:
        """Drop calls that no longer matter."""
        # A clock that was set back must not keep them.
        self._made_at = {
            call: at for call, at in self._made_at.items() if abs(now - at) < FORGET_AFTER
        }


class EngineHolds:
    """`step` passes holds of waiting jobs on, so that the engine does not start them.

    A call may fail, or be overtaken by another. Therefore it is repeated until an answer of the
    engine shows what it has changed.
    """

    def __init__(
        self, guard: Guard, engine: Engine, calls: BackgroundCalls, recent: RecentCalls
    ) -> None:
        self._guard = guard
        self._engine = engine
        self._calls = calls
        self._recent = recent

    def step(self, tasks: Iterable[EngineTask], answers: EngineAnswers, now: datetime) -> None:
        for task in tasks:
            is_held = bool(task.job.held) and task.job.state == JobState.QUEUED.value
            report = answers.reports.get(task.nonce)
            if task.reason.startswith(FAILED_LAUNCH) and not is_held:
                # A node failed before the runner began; Slurm holds the job until it is released.
                self._release(task, now)
            elif report is None or report.state is not TaskState.WAITING:
                continue
            elif is_held:
                self._hold(task, report, now)
            elif task.held:
                self._lift(task, report, answers.answered_at, now)

    def _hold(self, task: EngineTask, report: TaskReport, now: datetime) -> None:
        is_done = task.held and slurm_reasons.is_held(report.reason)
        if is_done or not self._recent.is_due("hold", task.ref, now):
            return
        self._calls.start("hold", task.ref, partial(self._engine.hold, task.ref))
        self._mark(task, held=True)

    def _lift(
        self, task: EngineTask, report: TaskReport, answered_at: datetime | None, now: datetime
    ) -> None:
        """Lift a hold of gpucoord. What a user holds in the engine itself stays held."""
        called_at = self._recent.made_at("release", task.ref)
        if called_at is None or slurm_reasons.is_held(report.reason):
            self._release(task, now)
        elif answered_at is not None and answered_at - called_at >= CALL_SETTLES:
            self._mark(task, held=False)

    def _release(self, task: EngineTask, now: datetime) -> None:
        if self._recent.is_due("release", task.ref, now):
            self._calls.start("hold", task.ref, partial(self._engine.release, task.ref))

    def _mark(self, task: EngineTask, *, held: bool) -> None:
        if task.held != held:
            with self._guard():
                EngineTask.objects.filter(pk=task.pk).update(held=held)
