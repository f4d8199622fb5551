"""REST: submit jobs, look at them, read their logs, cancel them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from ninja import Query, Router
from ninja.errors import HttpError
from ninja.responses import Status

from scheduler import arrays, holding, logs, outlook, own_limits, store, submitting, viewing
from scheduler.api_schemas import (
    Cancelled,
    Held,
    JobBody,
    JobPage,
    NewJobBody,
    Submitted,
    WhatIfBody,
    WhyBody,
)
from scheduler.models import Job
from scheduler.pages import job_lines
from scheduler.runner import files

router = Router()

# The server holds an answer in memory until the client has read it.
LARGEST_ANSWER = 8 * 1024**2
State = Literal["queued", "starting", "running", "stopping", "finished", "open"]
LOG_ANSWER = {
    200: {
        "description": "The bytes as the job wrote them.",
        "headers": {
            "X-Log-Next-Offset": {"schema": {"type": "integer"}, "description": "Go on here."},
            "X-Log-Size": {"schema": {"type": "integer"}},
            "X-Job-State": {
                "schema": {"type": "string"},
                "description": "finished: what follows X-Log-Next-Offset is all there will be.",
            },
        },
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
}


@router.post("", response={201: Submitted}, summary="Submit a job", url_name="jobs")
def submit(request: HttpRequest, new: NewJobBody) -> Status[dict[str, Any]]:
    """Put a job into the queue; once this answers, it is not lost.

    422: `errors` says for each field what is wrong, or that no GPU here, or none of your limits,
    could ever allow it. 429: you have as many waiting jobs as you may have.
    """
    job = submitting.submit(new.model_dump(), _person(request), timezone.now())
    answer = {
        "id": job.pk,
        "state": job.state,
        "url": reverse("job", args=[job.pk]),
        "array": arrays.members(job),
    }
    return Status(201, answer)


@router.get("", response=JobPage, summary="List jobs", url_name="jobs")
def list_jobs(
    request: HttpRequest,
    state: Annotated[State | None, Query(description="open: not finished.")] = None,
    owner: Annotated[str | None, Query(description="A user's name, or me.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
) -> dict[str, Any]:
    """The newest first; `next` is the address of the following page."""
    owner = _person(request).username if owner == "me" else owner
    found = viewing.filtered(state or "", owner or "")
    total = found.count()
    asked = {"state": state, "owner": owner, "limit": limit, "offset": offset + limit}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    return {
        "jobs": [viewing.line(job) for job in found[offset : offset + limit]],
        "total": total,
        "next": f"{reverse('api:jobs')}?{query}" if offset + limit < total else None,
    }


@router.get("{int:job_id}/", response=JobBody, summary="See a job", url_name="job")
def see(request: HttpRequest, job_id: int) -> dict[str, Any]:
    """Where it is, and why. Command, folder and variables are for its owner and operators."""
    return viewing.body(_job(job_id), _person(request), timezone.now())


@router.get("{int:job_id}/why/", response=WhyBody, summary="Why a job waits", url_name="job-why")
def why(request: HttpRequest, job_id: int) -> dict[str, Any]:
    """All its reasons, its position, when it may start, and what decides about its place."""
    job = _job(job_id)
    prospect = outlook.of(job, timezone.now())
    return viewing.why(job, prospect) | {"text": job_lines.verdict(job_lines.lines([job])[0])}


@router.post("what-if/", response=WhatIfBody, summary="When would a job start?", url_name="what-if")
def what_if(request: HttpRequest, new: NewJobBody) -> dict[str, Any]:
    """As if it were submitted now; nothing is. 422 as when it is submitted."""
    now, person = timezone.now(), _person(request)
    wish = submitting.checked(new.model_dump(), now)
    if refusals := own_limits.refusals(wish, person):
        raise submitting.UnableToSubmit(refusals)
    answer = outlook.what_if(wish, person.username, now)
    return viewing.what_if(answer)


@router.get(
    "{int:job_id}/log/",
    summary="Read a job's log",
    url_name="job-log",
    openapi_extra={"responses": LOG_ANSWER},
)
def log(
    request: HttpRequest,
    job_id: int,
    offset: Annotated[int, Query(ge=0, le=2**62, description="The first byte.")] = 0,
    limit: Annotated[
        int, Query(ge=1, le=LARGEST_ANSWER, description="At most so many bytes.")
    ] = LARGEST_ANSWER,
    tail: Annotated[
        int | None, Query(ge=1, le=LARGEST_ANSWER, description="Instead: so many at the end.")
    ] = None,
    attempt: Annotated[
        int | None, Query(ge=1, le=32767, description="Of an earlier attempt.")
    ] = None,
) -> HttpResponse:
    """Output and errors in one, in order.

    At most 8 MiB an answer; go on at X-Log-Next-Offset.
    """
    job = _job(job_id)
    if not viewing.may_see_all(job, _person(request)):
        raise HttpError(403, f"Only {job.owner.username} and operators may read this log.")
    number = attempt or viewing.latest_number(job)
    if removed := viewing.log_removed(job, number):
        raise HttpError(410, removed)
    path = files.log_path(Path(settings.DATA), job.pk, number)
    piece = logs.tail(path, tail) if tail else logs.read(path, offset, limit)
    response = HttpResponse(piece.data, content_type="text/plain; charset=utf-8")
    response["X-Log-Next-Offset"] = str(piece.end)
    response["X-Log-Size"] = str(piece.size)
    response["X-Job-State"] = job.state
    response["Cache-Control"] = "no-store"
    # Whatever a job writes must never run as a page of ours.
    response["Content-Security-Policy"] = "sandbox; default-src 'none'"
    return response


@router.post("{int:job_id}/cancel/", response=Cancelled, summary="Cancel a job", url_name="cancel")
def cancel(
    request: HttpRequest,
    job_id: int,
    array: Annotated[bool, Query(description="All that is left of its array.")] = False,
) -> dict[str, Any]:
    """A waiting job ends at once; a running one gets SIGTERM, then SIGKILL. Twice is fine."""
    job, person = _job(job_id), _person(request)
    if not viewing.may_cancel(job, person):
        raise HttpError(403, f"Only {job.owner.username} and operators may cancel this job.")
    now = timezone.now()
    if array and job.array is not None:
        done = arrays.cancel(job.array, person.username, now) > 0
    else:
        done = store.request_cancel(job.pk, person.username, now)
    job.refresh_from_db(fields=["state"])
    return {"id": job.pk, "state": job.state, "cancelled": done}


@router.post("{int:job_id}/hold/", response=Held, summary="Hold a waiting job", url_name="hold")
def hold(request: HttpRequest, job_id: int, reason: str = "") -> dict[str, Any]:
    """It does not start before it is released. Twice is fine."""
    job, person = _job(job_id), _person(request)
    if not holding.may_hold(job, person):
        raise HttpError(403, f"Only {job.owner.username} and operators may hold this job.")
    holding.hold(job.pk, person.username, timezone.now(), reason.strip()[:200])
    job.refresh_from_db(fields=["state", "held"])
    return {"id": job.pk, "state": job.state, "held": job.held or None}


@router.post("{int:job_id}/release/", response=Held, summary="Release a held job")
def release(request: HttpRequest, job_id: int) -> dict[str, Any]:
    """What an operator holds, operators release."""
    job, person = _job(job_id), _person(request)
    if not holding.may_release(job, person):
        raise HttpError(403, f"{job.held or 'It is not yours.'} Ask an operator to release it.")
    holding.release(job.pk, person.username, timezone.now())
    job.refresh_from_db(fields=["state", "held"])
    return {"id": job.pk, "state": job.state, "held": job.held or None}


def _person(request: HttpRequest) -> User:
    person: User = request.auth  # type: ignore[attr-defined]
    return person


def _job(job_id: int) -> Job:
    job = viewing.jobs().filter(pk=job_id).first() if job_id < 2**63 else None
    if job is None:
        raise Http404(f"There is no job {job_id}.")
    return job
