"""Pages of jobs: the queue, one job, and the form to submit a job."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from django_htmx.http import HttpResponseClientRedirect
from msgspec import Struct

from monitor.facts.formats import duration
from monitor.facts.input_rules import character_problem, is_number
from monitor.incidents.actions import may_see_details
from monitor.journal.rows import events
from monitor.models import Event, Incident
from monitor.pages.requests import posted_text, viewer_of
from scheduler.dispatch.steps import preview
from scheduler.dispatch.steps.preview import AT_ONCE, earlier_starts
from scheduler.facts.blockers import BlockerCode as Code
from scheduler.facts.field_types import Door, JobField, Kind
from scheduler.facts.job_fields import fields_of
from scheduler.facts.jobs import JobState
from scheduler.facts.units import size
from scheduler.jobs.pages import detail as job_page
from scheduler.jobs.pages import forms
from scheduler.jobs.pages import serialise as job_views
from scheduler.jobs.pages import table as job_table
from scheduler.jobs.pages import timeline as timeline_pages
from scheduler.jobs.pages.forms import NewJobForm, filled_from, shown_default, variables
from scheduler.jobs.pages.table import JobFilters
from scheduler.jobs.policy import ENOUGH_RUNS, PERIODS, RunsKnown
from scheduler.jobs.rows import changes as job_changes
from scheduler.jobs.rows import durations, relations
from scheduler.models import Job, JobPreset, SavedView
from scheduler.queue.planner import blockers as stored_blockers
from scheduler.queue.planner import sizing
from scheduler.queue.planner.blockers import Reason
from scheduler.queue.planner.forecasts import Advice
from scheduler.submission.intake import actions as intake_actions
from scheduler.submission.intake.policy import UnableToSubmit

LONGEST_REASON = 200
BULK_ACTIONS = {"cancel": "Cancelled", "hold": "Held", "release": "Released"}
MOST_SELECTED = 200
MOST_VIEWS = 12
LONGEST_VIEW_NAME = 40
LONGEST_QUERY = 600
ALL = "?"


@require_safe
def jobs(request: HttpRequest) -> HttpResponse:
    filters, now = job_table.JobFilters.from_query(request.GET), timezone.now()
    context = {
        "filters": filters,
        "table": job_table.table(filters, _person(request), now),
        "mine": job_table.next_of(_person(request), now),
        "views": views_of(_person(request)),
    }
    return render(request, "scheduler/jobs.html", context)


@require_POST
def bulk(request: HttpRequest) -> HttpResponse:
    """Cancel, hold or release the selected jobs. Cancelling asks for confirmation first."""
    action = request.POST.get("action", "")
    numbers = {int(pk) for pk in request.POST.getlist("job") if is_number(pk) and int(pk) < 2**63}
    view = request.POST.get("view", "")
    back = reverse("jobs") + (view if view.startswith("?") else "")
    if action not in BULK_ACTIONS or len(numbers) > MOST_SELECTED:
        messages.error(request, f"Select an action and at most {MOST_SELECTED} jobs.")
        return redirect(back)
    chosen = _may_change(Job.objects.filter(pk__in=numbers), _person(request))
    if action == "cancel" and not request.POST.get("sure"):
        selected = job_views.jobs().filter(pk__in=chosen.values("pk")).order_by("pk")
        context = {"lines": job_views.lines(selected), "view": view, "back": back}
        return render(request, "scheduler/bulk_cancel.html", context)
    count = _change(chosen, action, _person(request))
    left = len(numbers) - count
    also = f" {left} could not be changed: not yours, or in another state." if left else ""
    done = f"{BULK_ACTIONS[action]} {count} job{'' if count == 1 else 's'}.{also}"
    messages.info(request, done if numbers else "No jobs were selected.")
    return redirect(back)


def _may_change(jobs: QuerySet[Job], person: User) -> QuerySet[Job]:
    """The open ones of these that the user may cancel, hold or release."""
    open_jobs = jobs.exclude(state=JobState.FINISHED.value)
    return open_jobs if person.is_staff else open_jobs.filter(owner=person)


def _change(jobs: QuerySet[Job], action: str, person: User) -> int:
    now = timezone.now()
    if action == "cancel":
        return job_changes.cancel(jobs, person.username, now)
    if action == "hold":
        return job_changes.hold(jobs, person.username, now)
    return job_changes.release(job_changes.releasable(jobs, person), person.username, now)


@require_safe
def job(request: HttpRequest, pk: int) -> HttpResponse:
    row, person = _job(pk), _person(request)
    config = settings.CONFIG
    now = timezone.now()
    forecast = preview.of(row, now)
    context = job_page.whole(row, person, Path(settings.DATA), config.run_as, forecast)
    context |= job_page.history(row, request.GET, now)
    context["offer"] = offer(row, context["headline"], person, now)
    may_start = context["line"].waits and not (forecast.estimate and forecast.estimate.never)
    context["gpus_ahead"] = timeline_pages.of_waiting(row, now) if may_start else {}
    return render(request, "scheduler/job.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """The form to submit a job. A rejected form keeps its values."""
    now, person = timezone.now(), _person(request)
    if request.method != "POST":
        preset = forms.preset_values(person, request.GET.get("preset", ""))
        form = NewJobForm(initial=preset or _like(request), person=person, now=now)
        return render(request, "scheduler/new.html", _new_context(request, form))
    if chosen := _chosen(request):
        form = NewJobForm(initial=request.POST.dict() | chosen, person=person, now=now)
        return render(request, "scheduler/new.html", _new_context(request, form))
    form = NewJobForm(request.POST, person=person, now=now)
    if "what_if" in request.POST:
        return _what_if(request, form, now)
    if "save_preset" in request.POST:
        problem = forms.save(person, request)
        form = NewJobForm(initial=request.POST.dict(), person=person, now=now)
        context = {"preset_problem": problem, "preset_saved": not problem}
        return render(request, "scheduler/new.html", _new_context(request, form) | context)
    if job := form.submitted():
        messages.success(request, f"Job {job.pk} is submitted.")
        return _go(request, "job", job.pk)
    # htmx shows the page in any case; an error status would only fill the browser's console.
    status = 200 if getattr(request, "htmx", False) else 422
    return render(request, "scheduler/new.html", _new_context(request, form), status=status)


@require_POST
def remove_preset(request: HttpRequest, pk: int) -> HttpResponse:
    """Remove a preset of the user."""
    if not JobPreset.objects.filter(pk=pk, user=_person(request)).delete()[0]:
        raise Http404
    messages.success(request, "The preset is removed.")
    return redirect("job-new")


def _new_context(request: HttpRequest, form: NewJobForm) -> dict[str, object]:
    return {"form": form, **forms.context(_person(request))}


def _chosen(request: HttpRequest) -> dict[str, str]:
    """The field that a button of the form fills in: a GPU, its model or the suggested memory."""
    buttons = {"use_model": "model", "use_gpu": "on_gpu", "use_memory": "gpu_memory"}
    return {
        field: request.POST[button] for button, field in buttons.items() if button in request.POST
    }


def _what_if(request: HttpRequest, form: NewJobForm, now: datetime) -> HttpResponse:
    """The expected start of the job in the form. Nothing is submitted."""
    context = _new_context(request, form)
    if form.is_valid():
        context |= expected(form, _person(request), now)
    return render(request, "scheduler/new.html", context)


@require_POST
def draft(request: HttpRequest) -> HttpResponse:
    """A part of the page: the same while the user types, and commands that submit the job."""
    now, person = timezone.now(), _person(request)
    form = NewJobForm(request.POST, person=person, now=now)
    context: dict[str, object] = {"form": form}
    if form.is_valid():
        context |= expected(form, person, now)
        address = request.build_absolute_uri("/")
        context["equivalents"] = equivalents(form.cleaned_data, address)
    return render(request, "scheduler/_draft.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    """GET asks for confirmation; POST cancels the job."""
    row, person = _job(pk), _person(request)
    if not job_views.may_cancel(row, person):
        raise PermissionDenied
    if request.method != "POST":
        context = {**job_page.head(row, person), "array": relations.array_of(row)}
        return render(request, "scheduler/cancel.html", context)
    if row.array is not None and request.POST.get("all"):
        number = job_changes.cancel(
            relations.array_jobs(row.array), person.username, timezone.now()
        )
        messages.info(request, f"Cancelled {number} job{'' if number == 1 else 's'} of the array.")
    elif job_changes.request_cancel(row.pk, person.username, timezone.now()):
        messages.success(request, f"Job {row.pk} is being cancelled.")
    else:
        messages.info(request, f"Job {row.pk} has already ended or is being stopped.")
    return redirect("job", row.pk)


@require_POST
def hold(request: HttpRequest, pk: int) -> HttpResponse:
    """Hold a waiting job until it is released."""
    row, person = _job(pk), _person(request)
    if not job_changes.may_hold(row, person):
        raise PermissionDenied
    reason = " ".join(posted_text(request, "reason", LONGEST_REASON).split())
    if job_changes.hold_job(row.pk, person.username, timezone.now(), reason):
        messages.success(request, f"Job {row.pk} is held until it is released.")
    else:
        messages.info(request, f"Job {row.pk} is not waiting, or is already held.")
    return redirect("job", row.pk)


@require_POST
def release(request: HttpRequest, pk: int) -> HttpResponse:
    """Release a held job."""
    row, person = _job(pk), _person(request)
    if not job_changes.may_release(row, person):
        raise PermissionDenied
    if job_changes.release_job(row.pk, person.username, timezone.now()):
        messages.success(request, f"Job {row.pk} is released.")
    else:
        messages.info(request, f"Job {row.pk} is not held.")
    return redirect("job", row.pk)


def _go(request: HttpRequest, name: str, pk: int) -> HttpResponse:
    """Redirect. htmx would swap a plain redirect's page into this one."""
    if getattr(request, "htmx", False):
        return HttpResponseClientRedirect(reverse(name, args=[pk]))
    return redirect(name, pk)


def _like(request: HttpRequest) -> dict[str, object]:
    """?like=12 fills the form from job 12, if the user may see all of it."""
    pk = request.GET.get("like", "")
    job = job_views.jobs().filter(pk=pk).first() if is_number(pk) else None
    may_see = job is not None and job_views.may_see_all(job, _person(request))
    return filled_from(job) if job is not None and may_see else {}


def _person(request: HttpRequest) -> User:
    # The middleware admits authenticated users only.
    return cast(User, request.user)


def _job(pk: int) -> Job:
    job = job_views.jobs().filter(pk=pk).first() if pk < 2**63 else None
    if job is None:
        raise Http404(f"There is no job {pk}.")
    return job


def views_of(person: User) -> list[SavedView]:
    return list(SavedView.objects.filter(user=person))


def checked_query(query: str) -> str:
    """The query of the same view with valid values only; no other part of it remains."""
    fields = QueryDict(query[:LONGEST_QUERY].removeprefix("?"))
    return JobFilters.from_query(fields.dict()).with_()


@require_POST
def save_view(request: HttpRequest) -> HttpResponse:
    """Name this view. A view with the same filters gets the new name."""
    person = cast(User, request.user)
    query = checked_query(request.POST.get("query", ""))
    name = " ".join(posted_text(request, "name", LONGEST_VIEW_NAME).split())
    if not name or character_problem(name) or query == ALL:
        messages.error(
            request, f"Filter the list, and write a name of 1–{LONGEST_VIEW_NAME} characters."
        )
    elif len(views_of(person)) >= MOST_VIEWS:
        messages.error(request, f"You have {MOST_VIEWS} saved views. Remove one first.")
    else:
        SavedView.objects.update_or_create(user=person, query=query, defaults={"name": name})
        messages.success(request, f"The view “{name}” is saved.")
    return redirect(reverse("jobs") + query)


@require_POST
def remove_view(request: HttpRequest) -> HttpResponse:
    query = checked_query(request.POST.get("query", ""))
    count, _ = SavedView.objects.filter(user=cast(User, request.user), query=query).delete()
    messages.success(request, "The view is removed." if count else "There is no such view.")
    return redirect(reverse("jobs") + query)


# Forecast of the job in the form, and the same submission by command line and by REST.

# The values of variables may be secrets: a shell would keep them in its history.
LEFT_OUT = "…"


class Equivalents(Struct, frozen=True):
    """The form's submission as lines for a shell. Values of variables are left out."""

    command: str
    curl: str
    has_variables: bool


def expected(form: NewJobForm, person: User, now: datetime) -> dict[str, Any]:
    """For a template: when the job of a valid form would start, or why it would be rejected."""
    new = intake_actions.fitted(form.cleaned_data["new"], person)
    answer = preview.what_if(new, person.username, now)
    context: dict[str, Any] = {"answer": answer, "viewer": person.username}
    context |= stored_blockers.explained(map(stored_blockers.body, answer.blockers))
    context["limits"] = intake_actions.refusals(new, person)
    if not (answer.starts_now or context["limits"]):
        zone = settings.TIME_ZONE
        changes = preview.of_draft(new, person, now)
        context["advice"] = [preview.sentence(each, now, zone) for each in changes]
    if suggestion := intake_actions.memory_suggestion(new, person):
        context["suggestion"] = sizing.sentence(suggestion)
        context["memory"] = size(suggestion.memory_bytes)
    return context


def equivalents(values: Mapping[str, Any], address: str) -> Equivalents:
    """`values`: of a valid form, by field. `address`: of this gpucoord, with a slash at its end."""
    given = list(_given(values))
    words = [word for field, value in given for word in _option(field, value)]
    command = _plain(values["command"])
    body = {"command": command} | {field.name: _json(field, value) for field, value in given}
    data = shlex.quote(json.dumps(body, ensure_ascii=False))
    return Equivalents(
        command=shlex.join(["gpucoord", "submit", "--detach", *words, "--", command]),
        curl=f'curl -H "Authorization: Bearer $GPUCOORD_TOKEN" -H "Content-Type: application/json"'
        f" -d {data} {shlex.quote(f'{address}api/jobs/')}",
        has_variables=any(field.type.kind is Kind.VARIABLES for field, _ in given),
    )


def _given(values: Mapping[str, Any]) -> Iterator[tuple[JobField, Any]]:
    """The fields that say more than their defaults; the command comes last on a command line."""
    for field in fields_of(Door.FORM):
        value = values.get(field.name)
        text = _plain(value) if isinstance(value, str) else value
        if field.name != "command" and text and text != shown_default(field):
            yield field, text


def _option(field: JobField, value: Any) -> list[str]:
    kind = field.type.kind
    if kind is Kind.FLAG:
        return [field.option]
    if kind is Kind.VARIABLES:
        # Without a value, the option takes that of the shell.
        return [word for name in _names(value) for word in (field.option, name)]
    if kind is Kind.TAGS:
        return [word for line in _lines(value) for word in (field.option, line)]
    if kind is Kind.JOBS:
        return [field.option, ",".join(map(str, _numbers(value)))]
    return [f"{field.option}={value}"] if value.startswith("-") else [field.option, value]


def _json(field: JobField, value: Any) -> Any:
    kind = field.type.kind
    if kind is Kind.VARIABLES:
        return dict.fromkeys(_names(value), LEFT_OUT)
    if kind is Kind.TAGS:
        return _lines(value)
    if kind is Kind.JOBS:
        return _numbers(value)
    if field.type.json is int:
        return int(value)
    return float(value) if kind is Kind.NUMBER else value


def _plain(text: str) -> str:
    """Browsers send lines with carriage returns."""
    return text.replace("\r\n", "\n").strip()


def _names(value: Any) -> list[str]:
    """`value`: the mapping that the form makes of its lines, or the lines."""
    return list(value if isinstance(value, Mapping) else variables(value)[0])


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.replace(",", " ").split()]


# Actions of a user for a waiting job: make a change that helps, request a higher limit.


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
    return preview.advice_of(job, now, settings.TIME_ZONE).advice


def _offered(advice: Advice, now: datetime) -> OfferedChange:
    starts_now = advice.expected_start - now < preview.AT_ONCE
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
    answer = preview.advice_of(job, now, settings.TIME_ZONE)
    chosen = preview.find(answer.advice, request.POST.get("change", ""))
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
