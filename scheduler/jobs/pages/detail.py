"""Content of a job's page: the part for all users, and the part for its owner and operators."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.urls import reverse
from msgspec import Struct

from monitor.facts.formats import AnswerField, values_of
from monitor.facts.readings import OwnerSource, Snapshot
from monitor.gpus.rows import snapshot as snapshots
from monitor.usage.pages import content as history_content
from scheduler.dispatch.steps.preview import JobForecast
from scheduler.execution.pages import contact, elsewhere, not_read
from scheduler.execution.probes import Unreachable
from scheduler.execution.steps.progress import ends_of
from scheduler.execution.steps.specs import account_of_jobs
from scheduler.facts import people
from scheduler.facts.job_answers import JOB_ANSWERS
from scheduler.facts.jobs import DependencyKind, JobState, Outcome
from scheduler.jobs import probes as job_logs
from scheduler.jobs.pages import serialise as job_views
from scheduler.jobs.pages.serialise import JobLine, JobRecord
from scheduler.jobs.policy import SAVED_EXIT_CODE
from scheduler.jobs.probes import LogPiece
from scheduler.jobs.rows import changes as job_changes
from scheduler.jobs.rows import relations
from scheduler.models import Attempt, EngineTask, Job, YieldRequest
from scheduler.queue.planner import blockers as stored_blockers
from scheduler.queue.planner import sizing
from scheduler.runner import files
from scheduler.runner.spec import script_in


class OutsideContainer(Struct, frozen=True):
    """gpus: their indices. is_labelled: its label names the job."""

    name: str
    gpus: tuple[int, ...]
    is_labelled: bool


def of_attempt(attempt: Attempt) -> list[OutsideContainer]:
    """Those of a running attempt, by name; without a GPU nothing is known of them."""
    newest = snapshots.newest(attempt.gpu_host) if attempt.gpu_uuids else None
    if newest is None:
        return []
    owner = attempt.job.owner.username
    return outside(newest, str(attempt.job_id), owner, attempt.gpu_uuids)


def outside(
    snapshot: Snapshot, job_ref: str, owner: str, gpu_uuids: Collection[str]
) -> list[OutsideContainer]:
    """The containers that the job's label names, and those of its owner on its GPUs.

    A process in the job's cgroup, or below its first process, is inside of the job.
    """
    indices = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
    gpus: dict[str, set[int]] = {}
    labelled: set[str] = set()
    for process in snapshot.processes:
        is_inside = process.owner_source is OwnerSource.JOB
        if process.container is None or is_inside or process.gpu_uuid not in indices:
            continue
        is_labelled = process.job_ref == job_ref
        is_of_owner = process.job_ref is None and process.user == owner
        if not is_labelled and not (is_of_owner and process.gpu_uuid in gpu_uuids):
            continue
        gpus.setdefault(process.container, set()).add(indices[process.gpu_uuid])
        if is_labelled:
            labelled.add(process.container)
    return [
        OutsideContainer(name, tuple(sorted(numbers)), name in labelled)
        for name, numbers in sorted(gpus.items())
    ]


SHOWN_TAIL = 64 * 1024


class StateChange(Struct, frozen=True):
    """A step of the timeline. `at` None: not yet reached. `after`: time since the previous step."""

    word: str
    at: datetime | None
    after: timedelta | None = None


class ShownLog(Struct, frozen=True):
    """The end of a log. The live tail continues at `end`.

    removed: when the log was removed, in words. line: the number of its first line; None: unknown.
    """

    text: str
    start: int
    end: int
    size: int
    attempt: int
    removed: str = ""
    line: int | None = 1
    # Where it is, if it is on another host.
    elsewhere: str = ""


class EarlierRun(Struct, frozen=True):
    """The last run of a job that waits again. left: why it left its GPUs, "" if it did not.

    lasted: None if it never started. goes_on: it saved its work and continues from there.
    """

    number: int
    outcome: str
    lasted: timedelta | None
    ended_at: datetime
    left: str
    goes_on: bool


def head(job: Job, person: User) -> dict[str, Any]:
    """Name, state and permissions."""
    return {
        "job": job,
        "line": job_views.lines([job])[0],
        "may_see_all": job_views.may_see_all(job, person),
        "may_cancel": job_views.may_cancel(job, person),
        "may_hold": job_changes.may_hold(job, person),
        "may_release": job_changes.may_release(job, person),
    }


def whole(job: Job, person: User, data: Path, run_as: str, forecast: JobForecast) -> dict[str, Any]:
    context = {
        **head(job, person),
        **live(job, run_as, forecast),
        "viewer": person.username if job.owner_id == person.pk else "",
        "attempts": job_views.attempts_of(job),
        "details": details(job, person),
    }
    if context["may_see_all"]:
        context["log"] = shown_log(job, data)
        is_shell = job.argv[:2] == ["/bin/sh", "-c"] and job.argv[2:] == [job.command]
        script = script_in(job.argv)
        context["script"] = script and shlex.join([script.path, *script.words])
        context["argv"] = "" if is_shell else script.text if script else shlex.join(job.argv)
    return context | {
        "array": relations.array_of(job),
        "after": job_views.after(job, DependencyKind.END),
        "after_success": job_views.after(job, DependencyKind.SUCCESS),
    }


def details(job: Job, person: User) -> list[tuple[AnswerField, Any, list[tuple[str, str]]]]:
    """The values with a title that this user may see; of lists and mappings, names with texts."""
    sees_all = job_views.may_see_all(job, person)
    shown = [f for f in JOB_ANSWERS if f.title and (sees_all or not f.is_private)]
    return [
        (field, field.text(value) if field.unit else value, _named(field, value))
        for field, value in zip(shown, values_of(shown, JobRecord(job, {})).values(), strict=True)
        if value or field.missing
    ]


def _named(field: AnswerField, value: Any) -> list[tuple[str, str]]:
    if field.name == "limits":
        return people.limit_texts(value or {})
    names = dict.fromkeys(value, "") if isinstance(value, list) else value
    return list(names.items()) if isinstance(names, dict) else []


def live(job: Job, run_as: str, forecast: JobForecast) -> dict[str, Any]:
    """The live part of the page, the same for all viewers."""
    attempt = job_views.running_attempt(job)
    line = job_views.lines([job])[0]
    return {
        "job": job,
        "line": line,
        "attempt": attempt,
        "timeline": timeline(job, attempt),
        "account": account(job, run_as),
        "predicted": job_views.prediction_sentence(job),
        "sentence": sentence(line),
        "result": result(job, attempt),
        **stored_blockers.explained(forecast.reasons),
        "yields": asked_to_yield(attempt) if line.is_open else None,
        "earlier": earlier_run(job),
        "estimate": forecast.estimate,
        "factors": forecast.factors,
        "efficiency": job_views.efficiency(job),
        "ends": ends_of(attempt) if attempt else None,
        "contact": contact(attempt) if line.is_open else "",
        "engine_task": engine_task(job, attempt),
        "containers": of_attempt(attempt) if attempt and line.is_open else [],
    }


class EnginePlace(Struct, frozen=True):
    """Where a job is in another engine. expected_start_at: the engine's own estimate."""

    title: str
    ref: str
    node: str
    gpus: int | None
    expected_start_at: datetime | None


def engine_task(job: Job, attempt: Attempt | None) -> EnginePlace | None:
    """None: gpucoord itself runs the job."""
    task = EngineTask.objects.filter(job=job.pk).order_by("-pk").first()
    if task is not None and task.ref:
        is_waiting = job.state == JobState.QUEUED.value
        node = attempt.node if attempt is not None and attempt.nonce == task.nonce else ""
        expected = task.expected_start_at if is_waiting else None
        return EnginePlace(
            task.engine.capitalize(), task.ref, node or task.nodes, task.gpus, expected
        )
    if attempt is not None and attempt.engine:
        gpus = len(attempt.gpu_uuids) or None
        return EnginePlace(
            attempt.engine.capitalize(), attempt.engine_ref, attempt.node, gpus, None
        )
    return None


class JobResult(Struct, frozen=True):
    """GPU use of an ended job. None: unknown.

    gpu_s: GPU-seconds held. used_pct: mean utilisation while held. hint: a smaller request that
    would have been enough, "" unless the job succeeded.
    """

    gpu_s: float
    used_pct: float | None
    p95_pct: float | None
    peak_memory_bytes: int | None
    joules: float | None
    coverage_pct: float | None
    hint: str


def result(job: Job, attempt: Attempt | None) -> JobResult | None:
    """None: the job runs or waits, had no GPU, or its use is not recorded yet."""
    use = job_views.gpu_use(attempt) if attempt and attempt.ended_at else None
    if use is None:
        return None
    return JobResult(
        gpu_s=use.gpu_s,
        used_pct=use.mean_pct,
        p95_pct=use.p95_pct,
        peak_memory_bytes=use.peak_memory_bytes,
        joules=use.joules,
        coverage_pct=use.coverage_pct,
        # A job that failed may have ended before its peak.
        hint=sizing.right_size(job_views.declared_memory(job), use.peak_memory_bytes)
        if job.outcome == Outcome.SUCCEEDED.value
        else "",
    )


def history(job: Job, query: Mapping[str, str], now: datetime) -> dict[str, Any]:
    """Charts of the job's GPUs over its life; nothing before it started or without GPUs."""
    attempts = [a for a in job_views.attempts_of(job) if a.started_at and a.gpu_uuids]
    runs = [(a.started_at, a.ended_at) for a in attempts if a.started_at]
    if not runs:
        return {}
    gpus = len(attempts[-1].gpu_uuids)
    memory = None
    if job.gpu_memory_bytes:
        word = "expected" if job.gpu_memory_is_learned else "requested"
        memory = history_content.MemoryLine(word, job.gpu_memory_bytes * gpus)
    return history_content.job(str(job.pk), job.owner.username, gpus, memory, runs, query, now)


def asked_to_yield(attempt: Attempt | None) -> YieldRequest | None:
    """The open yield request of the attempt."""
    requests = YieldRequest.objects.filter(attempt=attempt, withdrawn_at=None)
    return requests.first() if attempt else None


def earlier_run(job: Job) -> EarlierRun | None:
    """None: the job does not wait, or waits for its first run."""
    attempt = job_views.latest(job) if job.state == JobState.QUEUED.value else None
    if attempt is None or attempt.ended_at is None:
        return None
    request = asked_to_yield(attempt)
    has_left = attempt.outcome == Outcome.PREEMPTED.value and request is not None
    return EarlierRun(
        attempt.number,
        Outcome(attempt.outcome).value.replace("_", " "),
        attempt.ended_at - attempt.started_at if attempt.started_at else None,
        attempt.ended_at,
        request.text if request is not None and has_left else "",
        attempt.exit_code == SAVED_EXIT_CODE,
    )


def facts(content: dict[str, Any]) -> object:
    """The values shown by `live` without running times. If they change, the page is rendered."""
    job, attempt = content["job"], content["attempt"]
    return (
        content["line"],
        tuple(content["timeline"]),
        job.problem,
        repr(content["why"]),
        job.held,
        job.idle_warning,
        content["earlier"],
        content["yields"] and (content["yields"].text, content["yields"].deadline),
        content["estimate"],
        tuple(round(factor.value, 2) for factor in content["factors"]),
        job.cancelled_by,
        content["account"],
        content["result"],
        content["efficiency"],
        content["ends"],
        content["contact"],
        content["engine_task"],
        attempt and attempt.progress_message,
        attempt and (attempt.number, attempt.pid, attempt.cpu_s, attempt.peak_memory_bytes),
    )


def sentence(line: JobLine) -> str:
    """The reason beside the state badge, without GPUs and times."""
    if line.waits:
        return job_views.verdict(line)
    if line.state == JobState.STOPPING.value:
        return "The job got SIGTERM and is killed if it does not end."
    return line.ending


def timeline(job: Job, attempt: Attempt | None) -> list[StateChange]:
    placed = attempt.placed_at if attempt else None
    steps = [
        ("submitted", job.submitted_at),
        ("assigned", placed),
        ("started", job.started_at),
        ("ended", job.ended_at),
    ]
    if job.ended_at is not None:
        steps = [(word, at) for word, at in steps if at is not None]
    changes: list[StateChange] = []
    for word, at in steps:
        before = changes[-1].at if changes else None
        changes.append(StateChange(word, at, at - before if at and before else None))
    return changes


def shown_log(job: Job, data: Path) -> ShownLog:
    number = job_views.latest_number(job)
    path = files.log_path(data, job.pk, number)
    piece, where = _end_of(job, path)
    text = job_logs.Decoder(piece.start, keeps_colours=True).feed(
        piece.data, final=job.state == JobState.FINISHED.value
    )
    # Lines of another host's log are not counted.
    is_counted = not piece.start or path.exists()
    before = job_logs.lines_before(path, piece.start) if is_counted else None
    return ShownLog(
        job_logs.as_displayed(text),
        piece.start,
        piece.end,
        piece.size,
        number,
        job_views.log_removed(job, number),
        None if before is None else before + 1,
        where,
    )


def _end_of(job: Job, path: Path) -> tuple[LogPiece, str]:
    """The end of the log, and where it is if another host has it and does not answer."""
    remote = elsewhere(job_views.latest(job), path)
    if remote is None:
        return job_logs.tail(path, SHOWN_TAIL), ""
    page = reverse("job", args=[job.pk])
    if not remote.address:
        return LogPiece(0, b"", 0), not_read(remote, page, None)
    try:
        return remote.tail(SHOWN_TAIL), ""
    except Unreachable as error:
        return LogPiece(0, b"", 0), not_read(remote, page, error)


def account(job: Job, run_as: str) -> str:
    """The OS account of the job. Empty: no account exists for its owner."""
    attempt = job_views.latest(job)
    if attempt and attempt.account:
        return attempt.account
    try:
        return account_of_jobs(job.owner, run_as).name
    except LookupError:
        return ""
