"""Step: keep the newest answer of another engine, and store what it says of tasks."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from django.db.models import QuerySet
from msgspec.structs import asdict

from monitor.facts.input_rules import escaped
from monitor.gpus.rows import snapshot as snapshots
from monitor.journal.rows import events
from monitor.models import Gpu
from monitor.runtime.policy import Guard
from monitor.runtime.rows.wakeups import wake
from scheduler.execution.engines.facts import (
    Allocation,
    EngineName,
    NodeReport,
    TaskList,
    TaskReport,
    TaskState,
)
from scheduler.execution.engines.policy import FILES_SETTLE, SUBMIT_SETTLES, sentence, state_of
from scheduler.execution.engines.slurm import OUTPUT, SlurmEngine
from scheduler.execution.policy import MAX_STARTS
from scheduler.execution.steps import outcomes
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts.jobs import LARGEST_RESULT, JobState, Outcome
from scheduler.jobs.policy import SAVED_EXIT_CODE
from scheduler.jobs.rows import changes, transitions
from scheduler.models import Attempt, EngineStatus, EngineTask, Job, YieldRequest
from scheduler.runner import attempt_files, files
from scheduler.runner.attempt_files import AttemptFiles

# Record how a job ended in another engine, and whether the engine answers.


TAIL_BYTES, OUTPUT_BYTES = 16_384, 500
TITLE = "Slurm"
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGKILL)
ENDING_CODES = tuple(128 + number for number in ENDING_SIGNALS)
WRITE_EVERY = timedelta(seconds=10)
MOST_NODES = 2000
# A task that Slurm has put back into its queue was preempted, or lost its node. COMPLETED: it has
# run again since, and ended with 0 as the attempt had been claimed (runner.batch.NOT_STARTED). The
# task of a job that a signal ends otherwise ends with another code.
PREEMPTED = ("PREEMPTED", "PENDING", "REQUEUED", "COMPLETED")
ENDS = {
    "TIMEOUT": (Outcome.TIMED_OUT, "Slurm ended it at its time limit."),
    "DEADLINE": (Outcome.TIMED_OUT, "Slurm ended it at its deadline."),
    "OUT_OF_MEMORY": (Outcome.FAILED, "Slurm ended it because it ran out of memory."),
    "CANCELLED": (Outcome.CANCELLED, "It was cancelled in Slurm."),
}


def close(task: EngineTask, now: datetime) -> None:
    """Nothing is left to do for this task."""
    EngineTask.objects.filter(pk=task.pk, closed_at=None).update(closed_at=now)


def end(
    task: EngineTask, attempt: Attempt, observed: AttemptFiles, specs: SpecWriter, now: datetime
) -> Callable[[], object] | None:
    """The change that stores a result; None: first the engine must say who stopped the job."""
    result = observed.result
    if result is None:
        return None
    # The engine signals all processes of a job at once, so the runner may not be the first.
    by_signal = result.signal in ENDING_SIGNALS or result.exit_code in ENDING_CODES
    is_cancelled = attempt.job.cancel_requested_at is not None
    is_stopped = not is_cancelled and (result.stopped == "asked" or by_signal)
    if is_cancelled and result.stopped is None and result.exit_code != 0:
        observed = replace(observed, result=replace(result, stopped="asked"))
    is_unexplained = task.ended_since is None and task.missing_since is None
    if is_stopped and is_unexplained and now.timestamp() - result.ended_at < _PATIENCE_S:
        return None
    folder = specs.folder(attempt)
    tail = b"" if result.exit_code == 0 else files.read_tail(folder / files.LOG, TAIL_BYTES)
    saved = attempt.job.preemptible and result.exit_code != 0 and specs.has_saved(attempt.job)
    given = files.read_given(specs.given(attempt).result, LARGEST_RESULT + 1)

    is_forgotten = task.ended_since is None and task.missing_since is not None
    if is_stopped and is_forgotten and result.exit_code != SAVED_EXIT_CODE:
        return partial(_record_forgotten, task, attempt, observed, saved, now)

    def store() -> None:
        explained = observed
        if is_stopped:
            explained = _explained(task, attempt, observed, now)
        elif result.yielded:
            _ensure_request(attempt, "Slurm ended it soon after.", now)
        outcomes.record_end(attempt, explained, tail, now, has_saved=saved, given=given)
        close(task, now)

    return store


_PATIENCE_S = 2 * FILES_SETTLE.total_seconds()


def _record_forgotten(
    task: EngineTask, attempt: Attempt, observed: AttemptFiles, has_saved: bool, now: datetime
) -> None:
    """A signal ended the job, and Slurm cannot say why.

    A slurmctld that was killed has lost its newest jobs, and their nodes end those that still run.
    """
    text = f"It was stopped by a signal, and {TITLE} no longer lists its job {task.ref}."
    outcomes.record_lost(attempt, observed, text, now, has_saved=has_saved)
    close(task, now)


def _explained(
    task: EngineTask, attempt: Attempt, observed: AttemptFiles, now: datetime
) -> AttemptFiles:
    """A job that was stopped from outside: by a user in Slurm, or by Slurm for another job."""
    word = _word(task)
    if word == "CANCELLED" and observed.result is not None:
        _mark_cancelled(attempt.job, now)
        return replace(observed, result=replace(observed.result, stopped="asked"))
    if word in PREEMPTED and observed.result is not None:
        _ensure_request(attempt, _left_text(word), now)
        return replace(observed, result=replace(observed.result, yielded=True))
    if word in ("TIMEOUT", "DEADLINE") and observed.result is not None:
        return replace(observed, result=replace(observed.result, stopped="time_limit"))
    return observed


def _left_text(word: str) -> str:
    """A task that is in Slurm's queue again need not have left for another job."""
    if word == "PREEMPTED":
        return "Slurm preempted it for another job."
    return "Slurm stopped it and put it back into its queue: for another job, or without its node."


def _word(task: EngineTask) -> str:
    return task.word.split(" ", 1)[0].rstrip("+")


def _mark_cancelled(job: Job, now: datetime) -> None:
    Job.objects.filter(pk=job.pk, cancel_requested_at=None).update(
        cancel_requested_at=now, cancelled_by=TITLE
    )
    if job.cancel_requested_at is None:
        job.cancel_requested_at, job.cancelled_by = now, TITLE


def _ensure_request(attempt: Attempt, text: str, now: datetime) -> None:
    """The yield request that Slurm made; the retry policy asks for it."""
    if getattr(attempt, "yield_request", None) is None:
        attempt.yield_request = YieldRequest.objects.create(
            attempt=attempt,
            kind=YieldRequest.Kind.EVICTION,
            code="Slurm",
            text=text,
            asked_at=now,
            deadline=now,
        )


def record_lost(
    task: EngineTask, attempt: Attempt, observed: AttemptFiles, specs: SpecWriter, now: datetime
) -> None:
    """End an attempt without a result by the engine's word."""
    word = _word(task)
    saved = attempt.job.preemptible and specs.has_saved(attempt.job)
    if word == "PREEMPTED":
        _ensure_request(attempt, _left_text(word), now)
    if word in ENDS and task.ended_since is not None:
        outcome, problem = ENDS[word]
        if outcome is Outcome.CANCELLED:
            _mark_cancelled(attempt.job, now)
        outcomes.record_without_result(attempt, observed, outcome, problem, now)
    else:
        outcomes.record_lost(attempt, observed, _lost_text(task), now, has_saved=saved)
    close(task, now)


def _lost_text(task: EngineTask) -> str:
    if task.ended_since is None:
        return f"{TITLE} no longer lists its job {task.ref}, so its exit code is unknown."
    reason = f", reason {task.reason}" if task.reason else ""
    return (
        f"Its runner was killed before it could store the exit code."
        f" {TITLE} says: {task.word}{reason}."
    )


def record_unstarted(task: EngineTask, specs: SpecWriter, now: datetime) -> None:
    """A task that ended in the engine before its runner began: try again, or hold the job."""
    close(task, now)
    job = Job.objects.filter(pk=task.job_id, state=JobState.QUEUED.value)
    if _word(task) == "CANCELLED":
        changes.cancel(job, TITLE, now)
        return
    closed = EngineTask.objects.filter(job=task.job_id, ended_since__isnull=False)
    since = task.job.released_at
    failed = closed.exclude(word="").filter(**({"created_at__gt": since} if since else {}))
    if failed.exclude(nonce__in=_nonces(task.job_id)).count() < MAX_STARTS:
        return
    folder = specs.folder(Attempt(job=task.job, number=task.number))
    # The account of the job can write anything there; all users see the reason.
    written = files.read_tail(folder / OUTPUT, OUTPUT_BYTES).decode(errors="replace")
    output = escaped(" ".join(written.split()))
    reason = f" ({task.reason})" if task.reason else ""
    text = f"{TITLE} could not start it {MAX_STARTS} times: {task.word}{reason}."
    job.update(held=f"{text} {output}".strip(), held_by="")


def _nonces(job_id: int) -> Sequence[str]:
    return list(Attempt.objects.filter(job=job_id).values_list("nonce", flat=True))


def engine_statuses() -> list[EngineStatus]:
    """For the status page."""
    return list(EngineStatus.objects.order_by("host"))


def decided_elsewhere() -> list[str]:
    """A sentence for each host that hands its jobs to an engine with decisions of its own."""
    made = SlurmEngine().capabilities()
    return [sentence(row.engine.capitalize(), row.host, made) for row in engine_statuses()]


class StatusWriter:
    """The row that says whether the engine answers, and which nodes it has."""

    def __init__(self, guard: Guard, host: str, engine: EngineName) -> None:
        self._guard = guard
        self._host = host
        self._engine = engine
        self._problem: str | None = None
        self._written_at: datetime | None = None
        self.version = ""

    def set_version(self, text: str) -> None:
        self.version = text

    def answered(self, look: TaskList, now: datetime) -> None:
        """Store the newest answer; a change between answering and silence is an event."""
        is_change = bool(look.problem) != bool(self._problem) or self._problem is None
        if not is_change and self._written_at and now - self._written_at < WRITE_EVERY:
            return
        states = [task.state for task in look.tasks]
        columns: dict[str, object] = {
            "engine": self._engine.value,
            "version": self.version,
            "problem": look.problem,
        }
        if look.is_answer:
            columns |= {
                "answered_at": now,
                "waiting": states.count(TaskState.WAITING),
                "running": states.count(TaskState.RUNNING),
            }
        with self._guard():
            row, is_new = EngineStatus.objects.get_or_create(
                host=self._host, defaults={**columns, "since_at": now}
            )
            if bool(row.problem) != bool(look.problem):
                columns["since_at"] = now
                self._report(look.problem, now)
            elif is_new and look.problem:
                self._report(look.problem, now)
            EngineStatus.objects.filter(pk=self._host).update(**columns)
        self._problem, self._written_at = look.problem, now

    def _report(self, problem: str, now: datetime) -> None:
        text = f"{TITLE} does not answer: {problem}" if problem else f"{TITLE} answers again"
        events.add(
            "ENGINE_UNAVAILABLE" if problem else "ENGINE_AVAILABLE",
            text,
            now=now,
            severity="warning" if problem else "info",
            host=self._host,
        )
        wake("live")

    def nodes(self, nodes: Sequence[NodeReport], now: datetime) -> bool:
        """False: the row is not there yet, as the first look is under way."""
        rows = [asdict(node) for node in nodes[:MOST_NODES]]
        with self._guard():
            status = EngineStatus.objects.filter(pk=self._host)
            return bool(status.update(nodes=rows, nodes_at=now, version=self.version))


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
