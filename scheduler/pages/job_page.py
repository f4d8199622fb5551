"""The page of one job: where it is, and why; what all may see, and what its owner may."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User

from scheduler import arrays, holding, logs, viewing, why
from scheduler.jobs import After, JobState
from scheduler.models import Attempt, Job, YieldRequest
from scheduler.outlook import Prospect
from scheduler.pages import job_lines
from scheduler.pages.job_lines import JobLine
from scheduler.runner import accounts, files

SHOWN_TAIL = 64 * 1024


@dataclass(frozen=True, slots=True)
class Moment:
    """A step of the timeline; `at` None = not yet. `after`: since the step before."""

    word: str
    at: datetime | None
    after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class ShownLog:
    """The end of the log as the page has it; the live tail goes on at `end`.

    removed: when it was taken away, in words.
    """

    text: str
    start: int
    end: int
    size: int
    attempt: int
    removed: str = ""


def head(job: Job, person: User) -> dict[str, Any]:
    """What names the job."""
    return {
        "job": job,
        "line": job_lines.lines([job])[0],
        "may_see_all": viewing.may_see_all(job, person),
        "may_cancel": viewing.may_cancel(job, person),
        "may_hold": holding.may_hold(job, person),
        "may_release": holding.may_release(job, person),
    }


def whole(job: Job, person: User, data: Path, run_as: str, prospect: Prospect) -> dict[str, Any]:
    context = {
        **head(job, person),
        **live(job, run_as, prospect),
        "attempts": viewing.attempts_of(job),
    }
    if context["may_see_all"]:
        context["log"] = shown_log(job, data)
        context["environment"] = sorted(job.env)
        is_shell = job.argv[:2] == ["/bin/sh", "-c"] and job.argv[2:] == [job.command]
        context["argv"] = "" if is_shell else shlex.join(job.argv)
    return context | {
        "array": arrays.of(job),
        "after": viewing.after(job, After.END),
        "after_success": viewing.after(job, After.SUCCESS),
    }


def live(job: Job, run_as: str, prospect: Prospect) -> dict[str, Any]:
    """What changes while one looks, the same for all who may see the page."""
    attempt = viewing.running_attempt(job)
    line = job_lines.lines([job])[0]
    return {
        "job": job,
        "line": line,
        "attempt": attempt,
        "timeline": timeline(job, attempt),
        "account": account(job, run_as),
        "sentence": sentence(line),
        "why": why.grouped(prospect.reasons),
        "yields": asked_to_yield(attempt) if line.is_open else None,
        "estimate": prospect.estimate,
        "factors": prospect.factors,
    }


def asked_to_yield(attempt: Attempt | None) -> YieldRequest | None:
    """What it was asked, when it is to leave its GPUs."""
    standing = YieldRequest.objects.filter(attempt=attempt, withdrawn_at=None)
    return standing.first() if attempt else None


def facts(shown: dict[str, Any]) -> object:
    """What `live` shows, but for the times that run on: a page is written anew when it changes."""
    job, attempt = shown["job"], shown["attempt"]
    return (
        shown["line"],
        tuple(shown["timeline"]),
        job.problem,
        repr(shown["why"]),
        job.held,
        shown["yields"] and (shown["yields"].text, shown["yields"].deadline),
        shown["estimate"],
        tuple(round(factor.value, 2) for factor in shown["factors"]),
        job.cancelled_by,
        shown["account"],
        attempt and (attempt.number, attempt.pid, attempt.cpu_s, attempt.peak_memory_bytes),
    )


def sentence(line: JobLine) -> str:
    """The answer beside the word for its state, but for GPUs and times, which the page has."""
    if line.waits:
        return job_lines.verdict(line)
    if line.state == JobState.STOPPING.value:
        return "It was asked to end, and is killed if it doesn't."
    return line.ending


def timeline(job: Job, attempt: Attempt | None) -> list[Moment]:
    placed = attempt.placed_at if attempt else None
    steps = [
        ("submitted", job.submitted_at),
        ("placed", placed),
        ("started", job.started_at),
        ("ended", job.ended_at),
    ]
    if job.ended_at is not None:
        steps = [(word, at) for word, at in steps if at is not None]
    found: list[Moment] = []
    for word, at in steps:
        before = found[-1].at if found else None
        found.append(Moment(word, at, at - before if at and before else None))
    return found


def shown_log(job: Job, data: Path) -> ShownLog:
    number = viewing.latest_number(job)
    piece = logs.tail(files.log_path(data, job.pk, number), SHOWN_TAIL)
    text = logs.Decoder(piece.start).feed(piece.data, final=job.state == JobState.FINISHED.value)
    removed = viewing.log_removed(job, number)
    return ShownLog(logs.as_seen(text), piece.start, piece.end, piece.size, number, removed)


def account(job: Job, run_as: str) -> str:
    """The account of the machine that it ran as, runs as, or will run as."""
    attempt = viewing.latest(job)
    if attempt and attempt.account:
        return attempt.account
    try:
        owner = job.owner
        return accounts.account_for(
            owner.username, superuser=owner.is_superuser, run_as=run_as
        ).name
    except LookupError:
        return ""
