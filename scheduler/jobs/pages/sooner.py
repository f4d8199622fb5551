"""Actions of a user for a waiting job: make a change that helps, request a higher limit."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe
from msgspec import Struct

from monitor.api import viewer_of
from monitor.facts.formats import duration
from monitor.incidents.actions import may_see_details
from monitor.journal.rows import events
from monitor.models import Event, Incident
from scheduler.dispatch.steps import advice as job_advice
from scheduler.dispatch.steps import preview
from scheduler.dispatch.steps.advice import AT_ONCE, earlier_starts
from scheduler.facts.blockers import BlockerCode as Code
from scheduler.facts.jobs import JobState
from scheduler.jobs.lifecycle.policy import ENOUGH_RUNS, PERIODS, RunsKnown
from scheduler.jobs.lifecycle.rows import changes as job_changes
from scheduler.jobs.lifecycle.rows import durations
from scheduler.jobs.pages import serialise as job_views
from scheduler.models import Job
from scheduler.queue.blockers import policy as stored_blockers
from scheduler.queue.blockers.policy import Reason
from scheduler.queue.planner.forecast.advice import Advice
from scheduler.submission.intake import actions as intake_actions
from scheduler.submission.intake.policy import UnableToSubmit

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


class OfferedChange(Struct, frozen=True):
    """key: identifies it in the form, "" = the owner can't make it alone.

    start: with the change, None = now. earlier: than without it, None = its start is unknown now.
    """

    words: str
    start: datetime | None
    earlier: timedelta | None
    key: str


class Offer(Struct, frozen=True):
    """The actions for a waiting job.

    advice: changes that let it start earlier. quota_url: page of the owner's quota, for operators.
    """

    advice: tuple[OfferedChange, ...] = ()
    may_request: bool = False
    is_requested: bool = False
    quota_url: str = ""


def offer(job: Job, headline: Reason | None, person: User, now: datetime) -> Offer | None:
    """None: there is nothing to offer."""
    if headline is None or job.state != JobState.QUEUED.value:
        return None
    if not job_views.may_cancel(job, person):
        return None
    limited = headline.code in OWN_LIMITS
    requested = limited and _requested(job)
    is_own = job.owner_id == person.pk and not person.is_staff
    made = Offer(
        advice=tuple(_offered(each, now) for each in _advice(job, now)),
        may_request=limited and is_own and not requested,
        is_requested=requested,
        quota_url=_quota_url(job) if limited and person.has_perm("scheduler.change_quota") else "",
    )
    return None if made == Offer() else made


def _advice(job: Job, now: datetime) -> tuple[Advice, ...]:
    return job_advice.of(job, now, settings.TIME_ZONE).advice


def _offered(advice: Advice, now: datetime) -> OfferedChange:
    starts_now = advice.expected_start - now < job_advice.AT_ONCE
    return OfferedChange(
        advice.words,
        None if starts_now else advice.expected_start,
        None if advice.was_unknown else advice.earlier,
        "" if "ask" in advice.fields else advice.key,
    )


def _requested(job: Job) -> bool:
    since = timezone.now() - AGAIN_AFTER
    return Event.objects.filter(kind="LIMIT_REQUESTED", job_ref=str(job.pk), at__gt=since).exists()


def _quota_url(job: Job) -> str:
    return reverse("people-person", args=[job.owner_id])


@require_POST
def follow(request: HttpRequest, pk: int) -> HttpResponse:
    """Make the change of an advice, if it still helps; `change` identifies it."""
    job, person = _own(request, pk)
    now = timezone.now()
    answer = job_advice.of(job, now, settings.TIME_ZONE)
    chosen = job_advice.find(answer.advice, request.POST.get("change", ""))
    if chosen is None or "ask" in chosen.fields:
        messages.info(request, f"That change would not start job {pk} earlier any more.")
        return redirect("job", pk)
    jobs = Job.objects.filter(pk=pk)
    try:
        done = _made(jobs, chosen, person, now)
    except UnableToSubmit as error:
        messages.error(request, " ".join(refusal.text for refusal in error.refusals))
    else:
        said = f"Job {pk} was changed: {chosen.words}."
        messages.success(request, said if done else f"Job {pk} could not be changed.")
    return redirect("job", pk)


def _made(jobs: QuerySet[Job], chosen: Advice, person: User, now: datetime) -> int:
    """How many of the jobs have been changed."""
    if "held" in chosen.fields:
        held = job_changes.releasable(jobs, person)
        return job_changes.release(held, person.username, now)
    return intake_actions.change(jobs, chosen.fields, person, now)


@require_POST
def request_more(request: HttpRequest, pk: int) -> HttpResponse:
    """An event tells operators that the owner's limit keeps this job waiting."""
    job, person = _own(request, pk)
    now = timezone.now()
    headline = stored_blockers.first(stored_blockers.reasons(preview.of(job, now).reasons))
    made = offer(job, headline, person, now)
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


# The section of the status page on the accuracy of predicted starts.


TITLES = {
    RunsKnown.NONE: "none",
    RunsKnown.FEW: f"fewer than {ENOUGH_RUNS}",
    RunsKnown.ENOUGH: f"{ENOUGH_RUNS} or more",
}


class CalibrationLine(Struct, frozen=True):
    title: str
    period: str
    starts: int
    error: timedelta | None
    before_p90_pct: float | None


def calibration_lines() -> list[CalibrationLine]:
    """By earlier runs and period; [] if no predicted job has started lately."""
    rows = durations.calibration(timezone.now())
    if not any(row.starts for row in rows):
        return []
    return [
        CalibrationLine(
            title=TITLES[row.runs],
            period=duration(PERIODS[row.period].total_seconds()),
            starts=row.starts,
            error=row.error,
            before_p90_pct=None if row.before_p90 is None else 100 * row.before_p90,
        )
        for row in rows
    ]


# The page of what would start earlier if an incident ended; the page of the incident shows it.


MOST = 3


@require_safe
def without_incident(request: HttpRequest, pk: int) -> HttpResponse:
    row, viewer, now = get_object_or_404(Incident, pk=pk), viewer_of(request), timezone.now()
    if not may_see_details(row, viewer):
        return render(request, "monitor/incident_hidden.html", {"incident": row}, status=403)
    starts = None if row.closed_at else earlier_starts(row, now)
    context = {
        "incident": row,
        "starts": None if starts is None else starts[:MOST],
        "more": 0 if starts is None else max(0, len(starts) - MOST),
        "at_once": now + AT_ONCE,
    }
    return render(request, "scheduler/without_incident.html", context)
