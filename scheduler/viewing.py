"""Rows: who may see what of a job, and a job as the API gives it out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import Prefetch, QuerySet
from django.urls import reverse

from monitor.formats import duration
from scheduler.blockers import TIER_WORDS, Tier
from scheduler.jobs import After, JobState
from scheduler.models import Attempt, Job
from scheduler.outlook import Prospect
from scheduler.policy.forecast import Estimate, WhatIf
from scheduler.reasons import blocker_body
from scheduler.why import ahead

Person = User | AnonymousUser


def may_see_all(job: Job, person: Person) -> bool:
    """Command, environment, folder and log are for the owner and for operators."""
    return job.owner_id == person.pk or person.is_staff


def may_cancel(job: Job, person: Person) -> bool:
    return may_see_all(job, person)


def jobs() -> QuerySet[Job]:
    """Jobs with their owners and attempts at hand."""
    attempts = Prefetch("attempts", Attempt.objects.order_by("number"))
    return Job.objects.select_related("owner").prefetch_related(attempts)


def filtered(state: str, owner: str) -> QuerySet[Job]:
    """The newest first. `state` "open" is every state but finished; "" is no filter."""
    found = jobs().order_by("-id")
    if state == "open":
        found = found.exclude(state=JobState.FINISHED.value)
    elif state:
        found = found.filter(state=state)
    # No name has a NUL, and PostgreSQL would not even look for one.
    return found.filter(owner__username=owner.replace("\0", "\ufffd")) if owner else found


def attempts_of(job: Job) -> list[Attempt]:
    return sorted(job.attempts.all(), key=lambda attempt: attempt.number)


def latest(job: Job) -> Attempt | None:
    return next(reversed(attempts_of(job)), None)


def running_attempt(job: Job) -> Attempt | None:
    """The attempt that holds its GPUs now, or held them at the end; none while it waits."""
    return None if job.state == JobState.QUEUED.value else latest(job)


def latest_number(job: Job) -> int:
    """The attempt whose log is shown. Before the first there is no log."""
    attempt = latest(job)
    return attempt.number if attempt else 1


def log_removed(job: Job, number: int) -> str:
    """When the log of this attempt was taken away, in words; "" = it was not."""
    found = next((each for each in attempts_of(job) if each.number == number), None)
    if found is None or found.files_gone_at is None or job.ended_at is None:
        return ""
    return f"The log was removed {duration(found.files_gone_at - job.ended_at)} after the end."


def line(job: Job) -> dict[str, Any]:
    """What everybody may see."""
    attempt = running_attempt(job)
    return {
        "id": job.pk,
        "name": job.name,
        "owner": job.owner.username,
        "state": job.state,
        "outcome": job.outcome or None,
        "priority": job.priority,
        "gpus": list(attempt.gpu_uuids) if attempt else [],
        "requested": requested(job),
        "submitted_at": job.submitted_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "url": reverse("job", args=[job.pk]),
    }


def requested(job: Job) -> dict[str, Any]:
    """What it asks of the GPUs; what few ask for stands there only when it was asked."""
    seldom = {
        "capability": job.capability,
        "model": job.gpu_model,
        "power": job.power,
        "on_gpu": job.gpu_uuid,
        "gpu_share": job.share_pct,
        "cpus": job.cpus,
        "memory_bytes": job.memory_bytes,
    }
    return {
        "gpus": job.gpus,
        "gpu_memory_bytes": job.gpu_memory_bytes,
        "exclusive": job.exclusive,
        **{name: value for name, value in seldom.items() if value},
    }


def after(job: Job, what: After) -> list[int]:
    """The jobs that it waits for in this way."""
    rows = job.dependencies.filter(after=what.value).order_by("on_id")
    return list(rows.values_list("on_id", flat=True))


def tier_of(blocker: dict[str, Any]) -> str:
    """In words; "" for one that an older version stored."""
    tier = blocker.get("tier")
    return TIER_WORDS[Tier(tier)] if tier else ""


def manners(job: Job) -> dict[str, Any]:
    """How it behaves, and what it waits for by its own wish."""
    return {
        "preemptible": job.preemptible,
        "requeue": job.requeue,
        "yield_signal": job.yield_signal or None,
        "grace_s": job.grace_s,
        "retries": job.retries,
        "failures": job.failures,
        "requeues": job.requeues,
        "begin_at": job.begin_at,
        "retry_at": job.retry_at,
        "held": job.held or None,
        "after": after(job, After.END),
        "after_success": after(job, After.SUCCESS),
        "array": job.array,
        "array_index": job.array_index,
    }


def body(job: Job, person: Person, now: datetime) -> dict[str, Any]:
    """The whole job, as `person` may see it."""
    attempt, seen = running_attempt(job), may_see_all(job, person)
    return {
        **line(job),
        "exit_code": job.exit_code,
        "signal": job.signal,
        "blockers": _told(ahead(job.blockers, now)),
        **_private(job, seen),
        "estimate_s": job.estimate_s,
        "time_limit_s": job.time_limit_s,
        **manners(job),
        "cancel_requested_at": job.cancel_requested_at,
        "cancelled_by": job.cancelled_by or None,
        "cpu_s": attempt.cpu_s if attempt else None,
        "peak_memory_bytes": attempt.peak_memory_bytes if attempt else None,
        "log_bytes": attempt.log_bytes if attempt else None,
        "attempts": [_attempt(each, seen) for each in attempts_of(job)],
    }


def why(job: Job, prospect: Prospect) -> dict[str, Any]:
    """Why it waits, and when it may start."""
    return {
        "id": job.pk,
        "name": job.name,
        "state": job.state,
        "blockers": _told(prospect.reasons),
        **_estimate(prospect.estimate),
        "factors": [asdict(factor) for factor in prospect.factors],
    }


def what_if(answer: WhatIf) -> dict[str, Any]:
    """What would become of a job."""
    return {
        "starts_now": answer.starts_now,
        "blockers": _told(map(blocker_body, answer.blockers)),
        **_estimate(answer.estimate),
    }


def _told(stored: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each | {"tier": tier_of(each)} for each in stored]


def _estimate(estimate: Estimate | None) -> dict[str, Any]:
    return {
        "position": estimate.position if estimate else None,
        "starts_p50": estimate.p50 if estimate else None,
        "starts_p90": estimate.p90 if estimate else None,
    }


def _private(job: Job, seen: bool) -> dict[str, Any]:
    if not seen:
        return dict.fromkeys(("problem", "command", "argv", "cwd", "env_names"))
    return {
        # It may name the folder or the program.
        "problem": job.problem or None,
        "command": job.command,
        "argv": job.argv,
        "cwd": job.cwd,
        "env_names": sorted(job.env),
    }


def _attempt(attempt: Attempt, seen: bool) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "host": attempt.host,
        "account": attempt.account,
        "gpus": list(attempt.gpu_uuids),
        "placed_at": attempt.placed_at,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "outcome": attempt.outcome or None,
        "problem": (attempt.problem or None) if seen else None,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "cpu_s": attempt.cpu_s,
        "peak_memory_bytes": attempt.peak_memory_bytes,
        "log_bytes": attempt.log_bytes,
        "log_removed_at": attempt.files_gone_at,
    }
