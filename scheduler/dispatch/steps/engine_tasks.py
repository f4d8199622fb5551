"""Step: submit, follow, stop and end the jobs that another engine runs.

Calls of the engine run beside the loop. What is due follows from the rows, the files of the
attempts and the newest answer, so a new process continues where a killed one stopped.

Step: which calls of another engine were made a moment ago, and holds that are passed on.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db.models import Max, QuerySet
from msgspec import Struct

from monitor.runtime.policy import Guard
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.wakeups import wake
from scheduler.dispatch.steps import engine_answers as endings
from scheduler.dispatch.steps.dispatcher import StoredReasons, group_by_reasons, keys_by_job, store
from scheduler.dispatch.steps.engine_answers import (
    EngineAnswers,
    TaskFolders,
    attempt_of,
    open_tasks,
    record_allocation,
)
from scheduler.execution.engines import policy
from scheduler.execution.engines.facts import (
    Allocation,
    Engine,
    EngineName,
    NodeReport,
    SubmitAnswer,
    SubmitResult,
    TaskReport,
    TaskState,
    Ticket,
)
from scheduler.execution.engines.policy import (
    STOP_AGAIN,
    Claim,
    EngineRules,
    Phase,
    TaskAction,
    TaskView,
    next_task_action,
    niceness_of,
    problem_of,
    variables_of,
)
from scheduler.execution.engines.slurm import BackgroundCalls, CallResult, SlurmEngine, account_of
from scheduler.execution.steps import outcomes
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details
from scheduler.facts.jobs import JobState
from scheduler.jobs.rows import durations, transitions
from scheduler.jobs.rows.relations import UnmetDependencies
from scheduler.models import Attempt, EngineTask, Job
from scheduler.runner import attempt_files
from scheduler.runner.accounts import Account, MissingAccount
from scheduler.runner.attempt_files import AttemptFiles

# Hand waiting jobs to another engine, and store why they wait there.


# New tasks in one step: a submission takes tens of milliseconds.
MOST_NEW = 200
FORGET_EVERY, KEPT_FOR = timedelta(hours=1), timedelta(days=1)
# Begins a refusal that is not the engine's.
BY_GPUCOORD = "gpucoord: "
REQUESTED = (
    "argv", "cwd", "env", "gpus", "gpu_memory_bytes", "gpu_model", "capability", "power",
    "gpu_uuid", "share_pct", "cpus", "memory_bytes", "time_limit_s", "umask", "limits",
    "primary_group", "priority", "grace_s", "yield_signal",
)  # fmt: skip


def digest_of(job: Job) -> str:
    """Equal as long as nothing changes that the engine or the runner was given."""
    values = [getattr(job, name) for name in REQUESTED]
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def ticket_of(task: EngineTask, folder: str, account: Account, rules: EngineRules) -> Ticket:
    job = task.job
    return Ticket(
        job_id=job.pk,
        nonce=task.nonce,
        folder=folder,
        uid=account.uid,
        gid=account.gid,
        groups=account.groups,
        home=account.home,
        gpus=job.gpus,
        gpu_type=rules.gpu_types.get(job.gpu_model, ""),
        niceness=niceness_of(job.priority),
        cpus=job.cpus,
        memory_bytes=job.memory_bytes,
        time_limit_s=job.time_limit_s,
        grace_s=rules.grace_s if job.grace_s is None else job.grace_s,
        options=rules.options,
        variables=variables_of(job.env),
    )


class EngineQueue:
    """`step(now)` creates tasks for waiting jobs and stores the reasons of those that wait."""

    def __init__(self, guard: Guard, host: str, engine: EngineName, rules: EngineRules) -> None:
        self._guard = guard
        self._host = host
        self._engine = engine
        self._rules = rules
        self._isolation = ItemIsolation(host, "engine queue", guard)
        self._unmet = UnmetDependencies()
        self._reported: StoredReasons | None = None
        self._forgot_at: datetime | None = None

    def waits(self, now: datetime) -> dict[int, tuple[Blocker, ...]]:
        """Reasons that gpucoord itself decides: holds, begin times, dependencies, array limits."""
        return durations.load(now, self._isolation.converter(now), self._unmet)

    def step(
        self,
        tasks: Iterable[EngineTask],
        waits: Mapping[int, tuple[Blocker, ...]],
        problem: str,
        now: datetime,
    ) -> int:
        """Returns the number of new tasks. problem: why the engine does not answer."""
        # Jobs that are meant for another host are not handed over.
        waiting = Job.objects.filter(state=JobState.QUEUED.value, host__in=("", self._host))
        waiting = waiting.order_by("-priority", "id")
        columns = ("pk", "gpus", "model_service_id", *REQUESTED[5:10])
        rows = {row[0]: row for row in waiting.values_list(*columns)}
        handed = {task.job_id: task for task in tasks}
        reasons: dict[int, tuple[Blocker, ...]] = {}
        ready = []
        for pk, _, service, *special in rows.values():
            impossible = problem_of(*special, is_service=service is not None, rules=self._rules)
            if pk in waits:
                reasons[pk] = waits[pk]
            elif impossible:
                reasons[pk] = (refusal(impossible),)
            elif pk in handed:
                reasons[pk] = (reason_of(handed[pk], problem),)
            else:
                reasons[pk] = (_WAITS_FOR_SUBMISSION,)
                ready.append(pk)
        new = self._hand_over(ready[:MOST_NEW], now) if not problem else 0
        self._forget(now)
        self._store(reasons, now)
        return new

    def store_reasons(self, tasks: Iterable[EngineTask], problem: str, now: datetime) -> None:
        """Of the jobs that are handed over, and of no others."""
        waiting = [task for task in tasks if task.job.state == JobState.QUEUED.value]
        self._store({task.job_id: (reason_of(task, problem),) for task in waiting}, now)
        self._forget(now)

    def _hand_over(self, ids: Collection[int], now: datetime) -> int:
        """Commit the intent; the submission follows in the next step."""
        if not ids:
            return 0
        jobs = Job.objects.filter(pk__in=ids, state=JobState.QUEUED.value)
        numbers = _newest_numbers(ids)
        rows = [
            EngineTask(
                job=job,
                host=self._host,
                engine=self._engine.value,
                number=numbers.get(job.pk, 0) + 1,
                nonce=secrets.token_hex(16),
                digest=digest_of(job),
                created_at=now,
            )
            for job in jobs
        ]
        with self._guard():
            # Another submission host may have been faster: the index allows one open task.
            EngineTask.objects.bulk_create(rows, ignore_conflicts=True)
        return len(rows)

    def _forget(self, now: datetime) -> None:
        """Delete tasks that were closed long ago; their attempts remain."""
        if self._forgot_at is not None and now - self._forgot_at < FORGET_EVERY:
            return
        self._forgot_at = now
        with self._guard():
            EngineTask.objects.filter(host=self._host, closed_at__lt=now - KEPT_FOR).delete()

    def _store(self, reasons: Mapping[int, tuple[Blocker, ...]], now: datetime) -> None:
        if self._reported is None:
            self._reported = StoredReasons.load(now)
        keys = keys_by_job(reasons)
        news = {id_: reasons[id_] for id_ in self._reported.news(keys, now)}
        if news:
            with self._guard():
                self._isolation.each(
                    group_by_reasons(news),
                    lambda same: f"reasons of job {same[0][0]}",
                    lambda same: store(*same, now),
                    now,
                )
                wake("live")
        self._reported.keep(keys, news, now)


def _newest_numbers(ids: Collection[int]) -> dict[int, int]:
    """The highest number of an attempt or of a task of each job."""
    numbers: dict[int, int] = {}
    for model in (Attempt, EngineTask):
        rows = model.objects.filter(job__in=ids).order_by().values_list("job")
        for pk, number in rows.annotate(Max("number")):
            numbers[pk] = max(number, numbers.get(pk, 0))
    return numbers


_WAITS_FOR_SUBMISSION = Blocker(
    code=BlockerCode.ENGINE_SUBMISSION, tier=Tier.NOT_YET, details=details(engine="Slurm")
)


def refusal(text: str, by: str = "") -> Blocker:
    """by: the engine that refuses the job; "" = gpucoord does, as the engine could not run it."""
    return Blocker(
        code=BlockerCode.ENGINE_REFUSED,
        tier=Tier.PERSON,
        holder=by or None,
        requested=text[:200],
        details=details(engine=by, reason=text),
    )


def reason_of(task: EngineTask, problem: str) -> Blocker:
    """Why a job waits that was handed over; the engine's reason is not changed."""
    if problem:
        facts = details(engine="Slurm", reason=problem)
        return Blocker(
            code=BlockerCode.ENGINE_AWAY, tier=Tier.MACHINE, holder="Slurm", details=facts
        )
    if task.refused:
        is_own = task.refused.startswith(BY_GPUCOORD)
        return refusal(task.refused.removeprefix(BY_GPUCOORD), "" if is_own else "Slurm")
    if not task.ref or not task.word:
        return _WAITS_FOR_SUBMISSION
    return Blocker(
        code=BlockerCode.ENGINE_WAITS,
        tier=policy.tier_of(task.reason),
        holder="Slurm",
        requested=task.reason or task.word,
        until=None,
        details=details(engine="Slurm", reason=task.reason or task.word, ref=task.ref),
    )


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
        is_done = task.held and policy.is_held(report.reason)
        if is_done or not self._recent.is_due("hold", task.ref, now):
            return
        self._calls.start("hold", task.ref, partial(self._engine.hold, task.ref))
        self._mark(task, held=True)

    def _lift(
        self, task: EngineTask, report: TaskReport, answered_at: datetime | None, now: datetime
    ) -> None:
        """Lift a hold of gpucoord. What a user holds in the engine itself stays held."""
        called_at = self._recent.made_at("release", task.ref)
        if called_at is None or policy.is_held(report.reason):
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


class TaskDecision(Struct, frozen=True):
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
            may_start = report.state is TaskState.WAITING and not policy.is_held(report.reason)
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
