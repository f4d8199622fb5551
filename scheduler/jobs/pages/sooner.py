"""Actions of a user for a waiting job: raise its priority, request a higher limit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from monitor.journal.rows import events
from monitor.models import Event
from scheduler.blockers.policy import stored_blockers
from scheduler.blockers.policy.stored_blockers import Reason
from scheduler.dispatch.steps import preview
from scheduler.facts.blockers import BlockerCode as Code
from scheduler.facts.jobs import PRIORITIES, JobState
from scheduler.intake import actions as intake_actions
from scheduler.intake.policy.new_job import UnableToSubmit
from scheduler.jobs.pages import serialise as job_views
from scheduler.models import Job, Quota
from scheduler.quotas import rows as quota_rows

# A second request for the same job is not sent within this time.
AGAIN_AFTER = timedelta(hours=24)
OWN_LIMITS = frozenset(
    {
        Code.USER_MAX_GPUS,
        Code.USER_MAX_JOBS,
        Code.USER_MAX_MEMORY,
        Code.BUDGET_DAY,
        Code.SHARE_EXCEEDED,
    }
)
# The order of the queue decides.
BY_ORDER = frozenset(
    {
        Code.SHARE_EXCEEDED,
        Code.SHARE_REDUCED,
        Code.PRESSURE,
        Code.UTIL_TARGET,
        Code.CPU_PLACES,
        Code.HOST_MEMORY,
        Code.HOST_CPUS,
        Code.GPU_COUNT,
        Code.OTHER_GPUS,
        Code.RESERVED_FOR,
        Code.GPU_TAKEN,
        Code.GPU_MEMORY,
    }
)


@dataclass(frozen=True, slots=True)
class Offer:
    """The actions for a waiting job. None or "": not allowed, or of no use.

    raised: the next priority. quota_url: page of the owner's quota, for operators.
    """

    raised: int | None = None
    may_request: bool = False
    is_requested: bool = False
    quota_url: str = ""


def offer(job: Job, headline: Reason | None, person: User) -> Offer | None:
    """None: there is nothing to offer."""
    if headline is None or job.state != JobState.QUEUED.value:
        return None
    if not job_views.may_cancel(job, person):
        return None
    raised = _next_priority(job, person) if _helps(headline) else None
    limited = headline.code in OWN_LIMITS
    requested = limited and _requested(job)
    is_own = job.owner_id == person.pk and not person.is_staff
    made = Offer(
        raised=raised,
        may_request=limited and is_own and not requested,
        is_requested=requested,
        quota_url=_quota_url(job) if limited and person.has_perm("scheduler.change_quota") else "",
    )
    return None if made == Offer() else made


def _helps(headline: Reason) -> bool:
    return headline.code in BY_ORDER and not headline.never


def _next_priority(job: Job, person: User) -> int | None:
    raised = job.priority + 1
    limit = None if person.is_staff else quota_rows.of_person(job.owner).priority
    allowed = raised in PRIORITIES and (limit is None or raised <= limit)
    return raised if allowed else None


def _requested(job: Job) -> bool:
    since = timezone.now() - AGAIN_AFTER
    return Event.objects.filter(kind="LIMIT_REQUESTED", job_ref=str(job.pk), at__gt=since).exists()


def _quota_url(job: Job) -> str:
    own = Quota.objects.filter(user=job.owner).values_list("pk", flat=True).first()
    if own is not None:
        return reverse("admin:scheduler_quota_change", args=[own])
    return f"{reverse('admin:scheduler_quota_add')}?user={job.owner_id}"


@require_POST
def raise_priority(request: HttpRequest, pk: int) -> HttpResponse:
    """The next priority, within the owner's quota; operators may exceed it."""
    job, person = _own(request, pk)
    raised = job.priority + 1
    if raised not in PRIORITIES:
        messages.info(request, f"Job {pk} already has the highest priority.")
        return redirect("job", pk)
    jobs, now = Job.objects.filter(pk=pk), timezone.now()
    try:
        changed = intake_actions.change(jobs, {"priority": raised}, person, now)
    except UnableToSubmit as error:
        messages.error(request, " ".join(refusal.text for refusal in error.refusals))
    else:
        words = f"Job {pk} has priority {raised} ({PRIORITIES[raised]})."
        messages.success(request, words if changed else f"Job {pk} waits no more.")
    return redirect("job", pk)


@require_POST
def request_more(request: HttpRequest, pk: int) -> HttpResponse:
    """An event tells operators that the owner's limit keeps this job waiting."""
    job, person = _own(request, pk)
    now = timezone.now()
    headline = stored_blockers.first(stored_blockers.reasons(preview.of(job, now).reasons))
    made = offer(job, headline, person)
    if made is None or headline is None or not made.may_request:
        messages.info(request, f"A request for job {pk} was already sent, or no limit blocks it.")
        return redirect("job", pk)
    text = f"{person.username} requests a higher limit for job {pk}: {headline.headline}"
    events.add(
        "LIMIT_REQUESTED",
        text,
        now=now,
        severity="warning",
        job_ref=str(pk),
        owner=person.username,
    )
    messages.success(request, "Request sent to the operators.")
    return redirect("job", pk)


def _own(request: HttpRequest, pk: int) -> tuple[Job, User]:
    person = cast(User, request.user)
    job = get_object_or_404(Job.objects.select_related("owner"), pk=pk if pk < 2**63 else 0)
    if not job_views.may_cancel(job, person):
        raise PermissionDenied
    return job, person
