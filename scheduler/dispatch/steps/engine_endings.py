"""Record how a job ended in another engine, and whether the engine answers."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import partial

from monitor.facts.input_rules import escaped
from monitor.journal.rows import events
from monitor.runtime.policy import Guard
from monitor.runtime.rows.wakeups import wake
from scheduler.execution.engines.facts import EngineName, NodeReport, TaskList, TaskState
from scheduler.execution.engines.policy.requests import FILES_SETTLE, sentence
from scheduler.execution.engines.slurm import OUTPUT, SlurmEngine
from scheduler.execution.policy import MAX_STARTS
from scheduler.execution.steps import outcomes
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts.jobs import LARGEST_RESULT, JobState, Outcome
from scheduler.jobs.lifecycle.policy.retries import SAVED_EXIT_CODE
from scheduler.jobs.lifecycle.rows import changes
from scheduler.models import Attempt, EngineStatus, EngineTask, Job, YieldRequest
from scheduler.runner import files
from scheduler.runner.attempt_files import AttemptFiles

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
