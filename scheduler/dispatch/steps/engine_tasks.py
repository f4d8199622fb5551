"""Step: submit, follow, stop and end the jobs that another engine runs.

Calls of the engine run beside the loop. What is due follows from the rows, the files of the
attempts and the newest answer, so a new process continues where a killed one stopped.

Step: which calls of another engine were made a moment ago, and holds that are passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db.models import QuerySet

from monitor.runtime.policy import Guard
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.wakeups import wake
from scheduler.dispatch.steps import engine_endings as endings
from scheduler.dispatch.steps.engine_answers import (
    EngineAnswers,
    TaskFolders,
    attempt_of,
    open_tasks,
    record_allocation,
)
from scheduler.dispatch.steps.engine_queue import BY_GPUCOORD, EngineQueue, digest_of, ticket_of
from scheduler.execution.engines.facts import (
    Allocation,
    Engine,
    NodeReport,
    SubmitAnswer,
    SubmitResult,
    TaskReport,
    TaskState,
    Ticket,
)
from scheduler.execution.engines.policy import slurm_texts
from scheduler.execution.engines.policy.requests import (
    STOP_AGAIN,
    Claim,
    EngineRules,
    Phase,
    TaskAction,
    TaskView,
    next_task_action,
)
from scheduler.execution.engines.slurm import BackgroundCalls, CallResult, SlurmEngine, account_of
from scheduler.execution.steps import outcomes
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts.blockers import BlockerCode
from scheduler.facts.jobs import JobState
from scheduler.jobs.lifecycle.rows import transitions
from scheduler.models import Attempt, EngineTask
from scheduler.runner import attempt_files
from scheduler.runner.accounts import MissingAccount
from scheduler.runner.attempt_files import AttemptFiles

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
        is_done = task.held and slurm_texts.is_held(report.reason)
        if is_done or not self._recent.is_due("hold", task.ref, now):
            return
        self._calls.start("hold", task.ref, partial(self._engine.hold, task.ref))
        self._mark(task, held=True)

    def _lift(
        self, task: EngineTask, report: TaskReport, answered_at: datetime | None, now: datetime
    ) -> None:
        """Lift a hold of gpucoord. What a user holds in the engine itself stays held."""
        called_at = self._recent.made_at("release", task.ref)
        if called_at is None or slurm_texts.is_held(report.reason):
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


NODES_EVERY = timedelta(seconds=30)
MOST_SUBMISSIONS = 40
GATES = frozenset({BlockerCode.HELD, BlockerCode.TOO_MANY_REQUEUES})


@dataclass(frozen=True, slots=True)
class TaskDecision:
    """A task with its open attempt, its files, and the action that follows."""

    task: EngineTask
    attempt: Attempt | None
    files: AttemptFiles | None
    action: TaskAction


class EngineStep:
    """`step(now)` moves each open task of this host one step further.

    accepts: new jobs are handed over. Without it, tasks that have not begun are withdrawn.
    """

    def __init__(
        self,
        guard: Guard,
        host: str,
        specs: SpecWriter,
        engine: SlurmEngine,
        rules: EngineRules,
        every: timedelta,
        *,
        accepts: bool = True,
    ) -> None:
        self._accepts = accepts
        self._guard = guard
        self._host = host
        self._specs = specs
        self._engine = engine
        self._rules = rules
        self._every = every
        self._queue = EngineQueue(guard, host, engine.name, rules)
        self._calls = BackgroundCalls()
        self._isolation = ItemIsolation(host, "engine", guard)
        self._folders = TaskFolders(specs)
        self._answers = EngineAnswers(guard, host, engine.name, every, self._folders)
        self._nodes_at: datetime | None = None
        self._recent = RecentCalls()
        self._holds = EngineHolds(guard, engine, self._calls, self._recent)
        # Attempts, with their tasks, whose GPUs the engine has reported.
        self._allocated: set[tuple[str, str]] = set()

    def step(self, now: datetime) -> int:
        """Returns the number of tasks that moved."""
        self._recent.forget(now)
        self._isolation.each(
            self._calls.finished(), _call_name, lambda result: self._take(result, now), now
        )
        tasks = list(open_tasks(self._host))
        waits = self._queue.waits(now)
        self._look(has_tasks=bool(tasks), now=now)
        attempts = {attempt.nonce: attempt for attempt in _attempts(self._host)}
        decisions = self._isolation.each(
            tasks, _name, lambda task: self._decide(task, attempts.get(task.nonce), waits, now), now
        )
        moved = [decision for _, decision in decisions if decision.action is not TaskAction.NONE]
        if moved:
            self._act_on(moved, now)
        self._ask_for_unknown_gpus(attempts.values(), now)
        self._holds.step([task for task in tasks if task.ref], self._answers, now)
        if self._accepts:
            self._queue.step(tasks, waits, self._answers.problem, now)
        else:
            self._queue.store_reasons(tasks, self._answers.problem, now)
        return len(moved)

    def close(self) -> None:
        self._calls.close()

    def _take(self, result: CallResult, now: datetime) -> None:
        kind, item = result.key
        take: dict[str, Callable[[Any, Any], None]] = {
            "look": lambda at, look: self._answers.take(at, look, self._stop_extras),
            "submit": partial(self._take_submission, now=now),
            "allocation": partial(self._take_allocation, now=now),
            "nodes": partial(self._take_nodes, now=now),
            "version": lambda _, text: self._answers.status.set_version(text),
        }
        if result.error is not None:
            if kind not in ("nodes", "allocation"):
                raise result.error
        elif kind in take:
            take[kind](item, result.value)

    def _take_nodes(self, _: object, nodes: list[NodeReport], now: datetime) -> None:
        if not self._answers.status.nodes(nodes, now):
            self._nodes_at = None

    def _look(self, *, has_tasks: bool, now: datetime) -> None:
        # A slow engine must not get a second look while the first one waits.
        is_looking = self._calls.count("look") > 0
        if not is_looking and self._answers.is_due(has_tasks=has_tasks, now=now):
            self._calls.start("look", now, self._engine.look)
        if self._nodes_at is None or now - self._nodes_at >= NODES_EVERY:
            self._nodes_at = now
            self._calls.start("nodes", "", self._engine.nodes)
            if not self._answers.status.version:
                self._calls.start("version", "", self._engine.version)

    def _stop_extras(self, extras: list[TaskReport], now: datetime) -> None:
        """They run nothing: the attempt is claimed, or is not wanted any more.

        A task that waits may start at any moment and be the one that claims the attempt, so it is
        held first. It is stopped when a later answer says that it is held.
        """
        for report in extras:
            may_start = report.state is TaskState.WAITING and not slurm_texts.is_held(report.reason)
            kind, call = ("hold", self._engine.hold) if may_start else ("stop", self._engine.stop)
            if self._recent.is_due(f"{kind} extra", report.ref, now):
                self._calls.start(kind, report.ref, partial(call, report.ref))

    # Consequences of each decision.

    def _decide(
        self, task: EngineTask, attempt: Attempt | None, waits: Mapping[int, Any], now: datetime
    ) -> TaskDecision:
        report = self._answers.reports.get(task.nonce)
        phase = Phase.OVER
        if attempt is not None:
            phase = Phase.PLACED
        elif task.job.state == JobState.QUEUED.value:
            phase = Phase.QUEUED
        is_wanted = self._accepts and task.digest == digest_of(task.job)
        is_wanted &= all(blocker.code in GATES for blocker in waits.get(task.job_id, ()))
        if phase is Phase.QUEUED and is_wanted and self._just_waits(task, report, now):
            return TaskDecision(task, None, None, TaskAction.NONE)
        files = attempt_files.read_attempt(
            self._specs.folder(attempt or attempt_of(task)), task.nonce
        )
        claim = Claim.NONE
        if files.claimed is not None:
            claim = Claim.RUNNER if files.claimed.runner else Claim.GIVEN_UP
        view = TaskView(
            phase=phase,
            claim=claim,
            ref=task.ref,
            state=report.state if report else None,
            is_wanted=is_wanted,
            is_started=files.started is not None,
            is_recorded=attempt is not None and attempt.pid is not None,
            has_result=files.result is not None,
            runner_alive=files.runner_alive or None,
            stop_requested=task.job.state == JobState.STOPPING.value,
            yield_requested=attempt is not None and attempt.asked_to_leave is not None,
            refused=bool(task.refused),
            tried_at=task.tried_at,
            answered_at=self._answers.answered_at,
            missing_since=task.missing_since,
            ended_since=task.ended_since,
        )
        return TaskDecision(task, attempt, files, next_task_action(view, now))

    def _just_waits(self, task: EngineTask, report: TaskReport | None, now: datetime) -> bool:
        """The common case of a long queue: a new answer says that it waits."""
        if (
            report is None
            or self._answers.answered_at is None
            or report.state is not TaskState.WAITING
        ):
            return False
        return task.ref == report.ref and now - self._answers.answered_at < 3 * self._every

    def _act_on(self, moved: list[TaskDecision], now: datetime) -> None:
        submissions = [view.task for view in moved if view.action is TaskAction.SUBMIT]
        if submissions:
            self._submit(submissions, now)
        due = [view for view in moved if not self._isolation.is_delayed(_row_name(view.task), now)]
        acted = self._isolation.each(
            due, lambda view: _name(view.task), lambda view: self._act(view, now), now
        )
        changes = [(view.task, change) for view, change in acted if change is not None]
        if changes:
            with self._guard():
                for task, change in changes:
                    self._isolation.attempt(_row_name(task), change, now)
                wake("live")

    def _act(self, decision: TaskDecision, now: datetime) -> Callable[[], object] | None:
        """Act on the engine; returns the change to store."""
        task, attempt, files = decision.task, decision.attempt, decision.files
        match decision.action:
            case TaskAction.GIVE_UP if self._recent.is_due("give up", task.nonce, now):
                ticket = self._ticket(task, now)
                if ticket is None:
                    return partial(endings.close, task, now)
                self._calls.start("give up", task.nonce, partial(self._engine.give_up, ticket))
            case TaskAction.STOP if self._is_listed(task) and self._recent.is_due(
                "stop", task.ref, now
            ):
                self._calls.start("stop", task.ref, partial(self._engine.stop, task.ref))
            case TaskAction.YIELD if self._is_listed(task) and self._recent.is_due(
                "yield", task.ref, now
            ):
                call = partial(self._engine.ask_to_yield, task.ref)
                self._calls.start("yield", task.ref, call)
            case TaskAction.ADOPT if files is not None and files.claimed is not None:
                return partial(self._adopt, task, files, now)
            case TaskAction.CLOSE:
                return partial(endings.close, task, now)
            case TaskAction.UNSTARTED:
                return partial(endings.record_unstarted, task, self._specs, now)
            case TaskAction.RECORD if attempt is not None and files is not None:
                self._ask_for_gpus(attempt)
                return partial(outcomes.record_start, attempt, files, now)
            case TaskAction.END if attempt is not None and files is not None:
                return endings.end(task, attempt, files, self._specs, now)
            case TaskAction.LOST if attempt is not None and files is not None:
                return partial(endings.record_lost, task, attempt, files, self._specs, now)
        return None

    def _is_listed(self, task: EngineTask) -> bool:
        """Whether the newest answer has this task under its ref.

        An engine that has lost its state may give the same ref to the task of another user.
        """
        report = self._answers.reports.get(task.nonce)
        return report is not None and report.ref == task.ref

    # Submission.

    def _submit(self, tasks: list[EngineTask], now: datetime) -> None:
        """Commit that it is tried, then try it: a killed process leaves no submission unnoticed."""
        room = MOST_SUBMISSIONS - self._calls.count("submit")
        due = [task for task in tasks if not self._calls.is_busy("submit", task.nonce)]
        ready = [
            (task, ticket) for task in due[: max(0, room)] if (ticket := self._ticket(task, now))
        ]
        if not ready:
            return
        with self._guard():
            ids = [task.pk for task, _ in ready]
            EngineTask.objects.filter(pk__in=ids).update(tried_at=now, refused="")
        for task, ticket in ready:
            self._calls.start("submit", task.nonce, partial(self._engine.submit, ticket))

    def _ticket(self, task: EngineTask, now: datetime) -> Ticket | None:
        """None: its owner has no account, so its job cannot run."""
        try:
            folder, account = self._specs.write_for_engine(attempt_of(task))
        except MissingAccount as error:
            with self._guard():
                rows = EngineTask.objects.filter(pk=task.pk)
                rows.update(refused=f"{BY_GPUCOORD}{error}", tried_at=now)
            return None
        return ticket_of(task, str(folder), account, self._rules)

    def _take_submission(self, nonce: str, answer: SubmitAnswer, now: datetime) -> None:
        rows = EngineTask.objects.filter(nonce=nonce, closed_at=None)
        with self._guard():
            if answer.result is SubmitResult.ACCEPTED:
                rows.filter(ref="").update(ref=answer.ref, submitted_at=now, refused="")
                self._answers.look_again()
            elif answer.result is SubmitResult.REFUSED:
                rows.filter(ref="").update(refused=answer.text[:1000], tried_at=now)
            else:
                self._answers.problem = answer.text or "It did not answer."

    # Start and GPUs.

    def _adopt(self, task: EngineTask, files: AttemptFiles, now: datetime) -> None:
        report, claimed = self._answers.reports.get(task.nonce), files.claimed
        attempt = attempt_of(task)
        attempt.engine_ref = task.ref or (report.ref if report else "")
        attempt.node = report.node if report else ""
        attempt.boot_id = claimed.boot_id if claimed else ""
        uid = self._folders.uid_of(task)
        attempt.account = "" if uid is None else account_of(uid)
        if transitions.adopt(attempt, now) is not None:
            self._ask_for_gpus(attempt)

    def _ask_for_gpus(self, attempt: Attempt) -> None:
        if ref := attempt.engine_ref:
            call = partial(self._engine.allocation, ref)
            self._calls.start("allocation", (attempt.nonce, ref), call)

    def _ask_for_unknown_gpus(self, attempts: Collection[Attempt], now: datetime) -> None:
        """The engine may not have answered, or the attempt is in another task since it did."""
        self._allocated &= {(attempt.nonce, attempt.engine_ref) for attempt in attempts}
        for attempt in attempts:
            is_unknown = (attempt.nonce, attempt.engine_ref) not in self._allocated
            is_due = attempt.job.gpus and not attempt.gpu_uuids and is_unknown
            if is_due and self._recent.is_due("allocation", attempt.engine_ref, now):
                self._ask_for_gpus(attempt)

    def _take_allocation(
        self, item: tuple[str, str], allocation: Allocation | None, now: datetime
    ) -> None:
        report = self._answers.reports.get(item[0])
        node = report.node if report else ""
        self._allocated.add(item)
        if allocation is not None:
            record_allocation(self._guard, *item, allocation, node, now)


def _call_name(result: CallResult) -> str:
    """A look has no item: its key holds the time of its start."""
    kind, item = result.key
    return f"{kind} of {item}" if item and kind != "look" else kind


def _attempts(host: str) -> QuerySet[Attempt]:
    rows = Attempt.objects.filter(host=host, ended_at=None).exclude(engine="")
    return rows.select_related("job__owner", "yield_request")


def _name(task: EngineTask) -> str:
    return f"{task.engine} task of job {task.job_id}"


def _row_name(task: EngineTask) -> str:
    return f"row of {_name(task)}"
