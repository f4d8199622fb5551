"""Pages of the jobs: the queue, one job, the form to submit one."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from django_htmx.http import HttpResponseClientRedirect

from scheduler import arrays, holding, outlook, own_limits, store, viewing, why
from scheduler.models import Job
from scheduler.pages import job_page, job_table
from scheduler.pages.forms import NewJobForm, filled_from
from scheduler.reasons import blocker_body

LONGEST_REASON = 200


@require_safe
def jobs(request: HttpRequest) -> HttpResponse:
    """When will mine start?"""
    wanted = job_table.Wanted.from_query(request.GET)
    context = {
        "wanted": wanted,
        "table": job_table.table(wanted, _person(request)),
        "mine": job_table.next_of(_person(request), timezone.now()),
    }
    return render(request, "scheduler/jobs.html", context)


@require_safe
def job(request: HttpRequest, pk: int) -> HttpResponse:
    """Where is my job, and why?"""
    found, person = _job(pk), _person(request)
    config = settings.CONFIG
    prospect = outlook.of(found, timezone.now())
    context = job_page.whole(found, person, Path(settings.DATA), config.run_as, prospect)
    return render(request, "scheduler/job.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """Submit a job. What was typed stays when something is wrong with it."""
    now = timezone.now()
    if request.method != "POST":
        form = NewJobForm(initial=_like(request), now=now)
        return render(request, "scheduler/new.html", {"form": form})
    form = NewJobForm(request.POST, now=now)
    if "what_if" in request.POST:
        return _what_if(request, form, now)
    if made := form.submitted_by(_person(request)):
        return _go(request, "job", made.pk)
    # htmx takes the page as it is; an error's status would only alarm the browser's console.
    status = 200 if getattr(request, "htmx", False) else 422
    return render(request, "scheduler/new.html", {"form": form}, status=status)


def _what_if(request: HttpRequest, form: NewJobForm, now: datetime) -> HttpResponse:
    """When would it start? Nothing is submitted, and all that was typed stays."""
    context: dict[str, object] = {"form": form}
    if form.is_valid():
        new, person = form.cleaned_data["new"], _person(request)
        answer = outlook.what_if(new, person.username, now)
        context["answer"] = answer
        context["why"] = why.grouped(map(blocker_body, answer.blockers))
        context["limits"] = own_limits.refusals(new, person)
    return render(request, "scheduler/new.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    """Ask once, naming the job; then cancel it."""
    found, person = _job(pk), _person(request)
    if not viewing.may_cancel(found, person):
        raise PermissionDenied
    if request.method != "POST":
        context = {**job_page.head(found, person), "array": arrays.of(found)}
        return render(request, "scheduler/cancel.html", context)
    if found.array is not None and request.POST.get("all"):
        number = arrays.cancel(found.array, person.username, timezone.now())
        messages.info(request, f"Cancelled {number} job{'' if number == 1 else 's'} of the array.")
    elif not store.request_cancel(found.pk, person.username, timezone.now()):
        messages.info(request, f"Job {found.pk} had ended already, or is being stopped.")
    return redirect("job", found.pk)


@require_POST
def hold(request: HttpRequest, pk: int) -> HttpResponse:
    """Keep a waiting job from starting, until it is released."""
    found, person = _job(pk), _person(request)
    if not holding.may_hold(found, person):
        raise PermissionDenied
    reason = request.POST.get("reason", "").strip()[:LONGEST_REASON]
    if not holding.hold(found.pk, person.username, timezone.now(), reason):
        messages.info(request, f"Job {found.pk} waits no more, or is held already.")
    return redirect("job", found.pk)


@require_POST
def release(request: HttpRequest, pk: int) -> HttpResponse:
    """Let a held job go."""
    found, person = _job(pk), _person(request)
    if not holding.may_release(found, person):
        raise PermissionDenied
    if not holding.release(found.pk, person.username, timezone.now()):
        messages.info(request, f"Job {found.pk} is not held.")
    return redirect("job", found.pk)


def _go(request: HttpRequest, name: str, pk: int) -> HttpResponse:
    """On to another page; htmx would put a redirect's page into this one."""
    if getattr(request, "htmx", False):
        return HttpResponseClientRedirect(reverse(name, args=[pk]))
    return redirect(name, pk)


def _like(request: HttpRequest) -> dict[str, object]:
    """?like=12 fills the form as job 12 was, for those who may see all of it."""
    pk = request.GET.get("like", "")
    like = viewing.jobs().filter(pk=pk).first() if pk.isdecimal() and len(pk) < 18 else None
    seen = like is not None and viewing.may_see_all(like, _person(request))
    return filled_from(like) if like is not None and seen else {}


def _person(request: HttpRequest) -> User:
    # The middleware lets nobody else in.
    return cast(User, request.user)


def _job(pk: int) -> Job:
    found = viewing.jobs().filter(pk=pk).first() if pk < 2**63 else None
    if found is None:
        raise Http404(f"There is no job {pk}.")
    return found
