"""Pages of the jobs: the queue, one job, the form to submit one."""

from __future__ import annotations

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
from django.views.decorators.http import require_http_methods, require_safe
from django_htmx.http import HttpResponseClientRedirect

from scheduler import job_page, job_table, store, viewing
from scheduler.forms import NewJobForm, filled_from
from scheduler.models import Job


@require_safe
def jobs(request: HttpRequest) -> HttpResponse:
    """When will mine start?"""
    wanted = job_table.Wanted.from_query(request.GET)
    context = {
        "wanted": wanted,
        "table": job_table.table(wanted, _person(request)),
        "mine": job_table.next_of(_person(request)),
    }
    return render(request, "scheduler/jobs.html", context)


@require_safe
def job(request: HttpRequest, pk: int) -> HttpResponse:
    """Where is my job, and why?"""
    found, person = _job(pk), _person(request)
    context = job_page.whole(found, person, Path(settings.DATA), settings.CONFIG.run_as)
    return render(request, "scheduler/job.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """Submit a job. What was typed stays when something is wrong with it."""
    now = timezone.now()
    if request.method != "POST":
        form = NewJobForm(initial=_like(request), now=now)
        return render(request, "scheduler/new.html", {"form": form})
    form = NewJobForm(request.POST, now=now)
    if made := form.submitted_by(_person(request)):
        return _go(request, "job", made.pk)
    # htmx takes the page as it is; an error's status would only alarm the browser's console.
    status = 200 if getattr(request, "htmx", False) else 422
    return render(request, "scheduler/new.html", {"form": form}, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    """Ask once, naming the job; then cancel it."""
    found, person = _job(pk), _person(request)
    if not viewing.may_cancel(found, person):
        raise PermissionDenied
    if request.method != "POST":
        return render(request, "scheduler/cancel.html", job_page.head(found, person))
    if not store.request_cancel(found.pk, person.username, timezone.now()):
        messages.info(request, f"Job {found.pk} had ended already, or is being stopped.")
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
