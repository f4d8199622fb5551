"""Step: keep the newest answer of another engine, and store what it says of open tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

from django.db.models import QuerySet

from monitor.gpus.snapshot import rows as snapshots
from monitor.models import Gpu
from monitor.runtime.policy import Guard
from monitor.runtime.rows.wakeups import wake
from scheduler.dispatch.steps.engine_endings import StatusWriter
from scheduler.execution.engines.facts import (
    Allocation,
    EngineName,
    TaskList,
    TaskReport,
    TaskState,
)
from scheduler.execution.engines.policy.requests import SUBMIT_SETTLES
from scheduler.execution.engines.policy.slurm_texts import state_of
from scheduler.execution.steps.specs import SpecWriter
from scheduler.jobs.lifecycle.rows import transitions
from scheduler.models import Attempt, EngineTask
from scheduler.runner import attempt_files

LOOK_WHEN_IDLE = timedelta(seconds=15)
MOST_NONCES = 5000
ALIVE = (TaskState.WAITING, TaskState.RUNNING)


class EngineAnswers:
    """`reports`: of the newest answer, by nonce. `answered_at`: when that was requested.

    problem: why the newest call was not answered; "" = it was.
    """

    def __init__(
        self,
        guard: Guard,
        host: str,
        engine: EngineName,
        every: timedelta,
        folders: TaskFolders,
    ) -> None:
        self._guard = guard
        self._host = host
        self._every = every
        self._folders = folders
        # Of open tasks, by nonce.
        self._uids: dict[str, int] = {}
        self._refs: dict[str, str] = {}
        self.status = StatusWriter(guard, host, engine)
        self.reports: Mapping[str, TaskReport] = {}
        self.answered_at: datetime | None = None
        self.problem = ""
        self._looked_at: datetime | None = None

    def is_due(self, *, has_tasks: bool, now: datetime) -> bool:
        """Whether to look now; the next look is due after that."""
        every = self._every if has_tasks else LOOK_WHEN_IDLE
        if self._looked_at is not None and now - self._looked_at < every:
            return False
        self._looked_at = now
        return True

    def look_again(self) -> None:
        """The next look is due at once."""
        self._looked_at = None

    def take(
        self, asked_at: datetime, look: TaskList, stop: Callable[[list[TaskReport], datetime], None]
    ) -> None:
        """Store an answer; `stop` gets tasks that should not be there."""
        self.problem = look.problem
        if look.is_answer and (self.answered_at is None or asked_at > self.answered_at):
            self.answered_at = asked_at
            tasks = list(open_tasks(self._host))
            by_nonce = {task.nonce: task for task in tasks}
            self._refs = {nonce: ref for nonce, ref in self._refs.items() if nonce in by_nonce}
            self.reports, extras = best_by_nonce(
                look, self._submitters(tasks), lambda nonce: self._ref_of(by_nonce.get(nonce))
            )
            stop([*extras, *self._left_over()], asked_at)
            self._store_reports(tasks, asked_at)
        self.status.answered(look, asked_at)

    def _ref_of(self, task: EngineTask | None) -> str:
        """Read until it is known: a claim never changes, but a job can write its file anew."""
        if task is None:
            return ""
        if not self._refs.get(task.nonce):
            self._refs[task.nonce] = self._folders.ref_of(task)
        return self._refs[task.nonce]

    def _submitters(self, tasks: list[EngineTask]) -> Mapping[str, int]:
        """Read once for each task: its folder keeps its owner."""
        known = self._uids
        self._uids = {}
        for task in tasks:
            uid = known.get(task.nonce)
            if uid is None and task.tried_at is not None:
                uid = self._folders.uid_of(task)
            if uid is not None:
                self._uids[task.nonce] = uid
        return self._uids

    def _left_over(self) -> list[TaskReport]:
        """Living tasks whose row is closed."""
        alive = [
            nonce
            for nonce, report in self.reports.items()
            if report.state in ALIVE and report.word != "COMPLETING"
        ]
        closed = EngineTask.objects.filter(
            host=self._host, closed_at__isnull=False, nonce__in=alive[:MOST_NONCES]
        )
        return [self.reports[nonce] for nonce in closed.values_list("nonce", flat=True)]

    def _store_reports(self, tasks: list[EngineTask], at: datetime) -> None:
        """Write what changed, in a few statements."""
        changed = [task for task in tasks if self._apply_report(task, at)]
        moved = self._moved()
        if changed or moved:
            columns = ["ref", "word", "reason", "nodes", "expected_start_at", "seen_at"]
            columns += ["submitted_at", "refused", "missing_since", "ended_since"]
            with self._guard():
                EngineTask.objects.bulk_update(changed, columns, batch_size=500)
                for nonce in moved:
                    follow_task(nonce, self.reports[nonce], at)
                wake("live")

    def _moved(self) -> list[str]:
        """Nonces of open attempts that are in another task than their row says, or in none there.

        An attempt has none if its runner was faster than the first answer that contains the task.
        """
        rows = Attempt.objects.filter(host=self._host, ended_at=None).exclude(engine="")
        return [
            nonce
            for nonce, ref in rows.values_list("nonce", "engine_ref")
            if nonce in self.reports and self.reports[nonce].ref != ref
        ]

    def _apply_report(self, task: EngineTask, at: datetime) -> bool:
        """Whether the row changes."""
        report = self.reports.get(task.nonce)
        if report is None:
            submitted_at = task.submitted_at or (task.tried_at and task.tried_at + SUBMIT_SETTLES)
            is_new = bool(submitted_at and submitted_at <= at and task.missing_since is None)
            if is_new:
                task.missing_since = at
            return is_new
        # Slurm may put a task back into its queue, which ends what had begun.
        has_begun = state_of(task.word) is TaskState.RUNNING or task.ended_since is not None
        is_requeued = report.state is TaskState.WAITING and has_begun
        is_over = report.state is TaskState.ENDED or is_requeued
        new = {
            "ref": report.ref,
            "word": report.word,
            "reason": report.reason,
            "nodes": report.nodes or task.nodes,
            "expected_start_at": report.expected_start,
            "refused": "",
            "missing_since": None,
            "ended_since": (task.ended_since or at) if is_over else None,
        }
        if all(getattr(task, name) == value for name, value in new.items()):
            return False
        for name, value in new.items():
            setattr(task, name, value)
        task.seen_at, task.submitted_at = at, task.submitted_at or at
        return True


def best_by_nonce(
    look: TaskList, uids: Mapping[str, int], ref_of: Callable[[str], str]
) -> tuple[dict[str, TaskReport], list[TaskReport]]:
    """The task of each nonce, and further tasks of the same nonce that wait.

    ref_of: the task in which the runner of a nonce is, as the runner reports it; "" = none has
    claimed the attempt. A job's account can write that report, so it only chooses among the tasks
    of its nonce. Without it, a task that runs goes before one that waits, and one that waits before
    one that has ended. A second task that runs ends by itself at once, so it is not stopped.
    uids: of the accounts that submitted them. Every user can read a nonce in the list of the engine
    and submit a task with it, so a task of another account does not count.
    """
    tasks: dict[str, list[TaskReport]] = {}
    for report in look.tasks:
        if report.nonce and report.uid == uids.get(report.nonce, report.uid):
            tasks.setdefault(report.nonce, []).append(report)
    best: dict[str, TaskReport] = {}
    extras = []
    for nonce, reports in tasks.items():
        best[nonce] = reports[0] if len(reports) == 1 else _best(reports, ref_of(nonce))
        extras += [
            report
            for report in reports
            if report is not best[nonce] and report.state is TaskState.WAITING
        ]
    return best, extras


_ORDER = (TaskState.RUNNING, TaskState.WAITING, TaskState.UNKNOWN, TaskState.ENDED)


def _best(reports: list[TaskReport], ref: str) -> TaskReport:
    return min(reports, key=lambda report: (report.ref != ref, _ORDER.index(report.state)))


def open_tasks(host: str) -> QuerySet[EngineTask]:
    rows = EngineTask.objects.filter(host=host, closed_at=None)
    return rows.select_related("job__owner").order_by("pk")


# The folder of a task's attempt, and facts of the task that only it has.


def attempt_of(task: EngineTask) -> Attempt:
    """The attempt as it is before the engine has started it."""
    return Attempt(
        job=task.job,
        number=task.number,
        host=task.host,
        nonce=task.nonce,
        engine=task.engine,
        engine_ref=task.ref,
        gpu_uuids=[],
    )


class TaskFolders:
    """Reads the folders of tasks."""

    def __init__(self, specs: SpecWriter) -> None:
        self._specs = specs

    def uid_of(self, task: EngineTask) -> int | None:
        """Of the account that has the folder of the attempt; None: there is none."""
        try:
            return self._folder(task).stat().st_uid
        except OSError:
            return None

    def ref_of(self, task: EngineTask) -> str:
        """The engine's task in which the runner of the attempt is; "" = none has claimed it."""
        claimed = attempt_files.read_claim(self._folder(task), task.nonce)
        return claimed.engine_ref if claimed is not None and claimed.runner else ""

    def _folder(self, task: EngineTask) -> Path:
        return self._specs.folder(attempt_of(task))


# Stores which GPUs an engine gave to an attempt.


def record_allocation(
    guard: Guard, nonce: str, ref: str, allocation: Allocation, node: str, now: datetime
) -> None:
    """`node` is the host that the engine named last; "": none.

    An attempt that has ended, whose GPUs are known, or that is in another task than `ref`, stays as
    it is.
    """
    open_attempts = Attempt.objects.filter(nonce=nonce, engine_ref=ref, ended_at=None)
    row = open_attempts.select_related("job__owner").first()
    if row is None or row.gpu_uuids:
        return
    row.node = row.node or node or next(iter(allocation.gpu_indices), "")
    row.gpu_uuids = _uuids_of(row.node, allocation.gpu_indices.get(row.node, ()))
    with guard():
        EngineTask.objects.filter(nonce=nonce).update(gpus=allocation.gpus)
        unnamed = Attempt.objects.filter(pk=row.pk, engine_ref=ref, ended_at=None, gpu_uuids=[])
        if unnamed.update(node=row.node, gpu_uuids=row.gpu_uuids) and row.gpu_uuids:
            transitions.open_claims(row, now)


def follow_task(nonce: str, report: TaskReport, now: datetime) -> None:
    """The open attempt runs in this task of the engine: with another one go its node and GPUs.

    The GPUs of the right task are requested afterwards. Call it inside the guard.
    """
    rows = Attempt.objects.filter(nonce=nonce, ended_at=None).exclude(engine="")
    attempt = rows.exclude(engine_ref=report.ref).first()
    if attempt is None:
        return
    if attempt.gpu_uuids:
        snapshots.close_claims(str(attempt.job_id), now)
    EngineTask.objects.filter(nonce=nonce).update(gpus=None)
    Attempt.objects.filter(pk=attempt.pk).update(
        engine_ref=report.ref, node=report.node, gpu_uuids=[]
    )


def _uuids_of(node: str, indices: tuple[int, ...]) -> list[str]:
    """The GPUs with these indices on a monitored host; [] unless all of them are there."""
    if not node or not indices:
        return []
    rows = dict(Gpu.objects.filter(host=node).values_list("index", "uuid"))
    return [rows[index] for index in indices] if all(i in rows for i in indices) else []
