"""REST: submit jobs, look at them, read their logs, cancel them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from django.conf import settings
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from ninja import Header, Query, Router
from ninja.errors import HttpError
from ninja.responses import Status

from monitor.api import Moment, caller
from monitor.facts.input_rules import character_problem
from monitor.models import Agent
from monitor.pages.requests import InvalidInput
from scheduler.dispatch.steps import preview, yields
from scheduler.execution.pages import LOG_ANSWER, elsewhere, not_read
from scheduler.execution.probes import Unreachable
from scheduler.facts.field_types import LONGEST_NAME
from scheduler.facts.jobs import JobState
from scheduler.jobs import probes as job_logs
from scheduler.jobs.pages import serialise as job_views
from scheduler.jobs.probes import LogPiece
from scheduler.jobs.rows import changes as job_changes
from scheduler.jobs.rows import relations
from scheduler.models import Attempt, Job
from scheduler.queue.planner.blockers import addressed
from scheduler.runner import files
from scheduler.submission.intake import actions as intake_actions
from scheduler.submission.intake import steps
from scheduler.submission.intake.api import (
    AdviceBody,
    ArrayBody,
    BatchBody,
    BatchResponse,
    CancelResponse,
    ChangeBody,
    HoldResponse,
    JobBody,
    JobPage,
    NewJobBody,
    RequeueResponse,
    ResubmitBody,
    SubmitResponse,
    WhatIfBody,
    WhyBody,
)
from scheduler.submission.intake.policy import UnableToSubmit

router = Router()
MOST_REASON = 200

# The server holds an answer in memory until the client has read it.
LARGEST_ANSWER = 8 * 1024**2
State = Literal["queued", "starting", "running", "stopping", "finished", "open"]
JobOutcome = Literal[
    "succeeded", "failed", "cancelled", "timed_out", "lost", "preempted", "skipped"
]
LONGEST_TAG = 241
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern="^[!-~]+$",
        description="Any text, such as a UUID. The same key and body within a day "
        "submit once and get the same answer.",
    ),
]


@router.post("", response={201: SubmitResponse}, summary="Submit a job", url_name="jobs")
def submit(
    request: HttpRequest,
    response: HttpResponse,
    new: NewJobBody,
    idempotency_key: IdempotencyKey = None,
) -> Status[dict[str, Any]]:
    """Queue a job. It is stored durably before the answer.

    422: `errors` says for each field what is wrong, or that no GPU here, or none of your limits,
    could ever allow it. 429: you have as many waiting jobs as you may have. With the header
    `Idempotency-Key` a request whose answer was lost can be sent again.
    """
    number, is_replayed = intake_actions.submit_once(
        new.model_dump(), caller(request), timezone.now(), idempotency_key, agent_of(request)
    )
    return _submitted(response, number, is_replayed=is_replayed, is_array=bool(new.array))


def _submitted(
    response: HttpResponse, number: int, *, is_replayed: bool, is_array: bool
) -> Status[dict[str, Any]]:
    if is_replayed:
        response["Idempotency-Replayed"] = "true"
    answer = {
        "id": number,
        # As the first answer said, whatever became of it since.
        "state": JobState.QUEUED,
        "url": reverse("job", args=[number]),
        "array": relations.array_members(number) if is_array else None,
        "left_out": Job.objects.values_list("left_out", flat=True).get(pk=number),
    }
    return Status(201, answer)


@router.post(
    "batch/", response={201: BatchResponse}, summary="Submit many jobs", url_name="jobs-batch"
)
def submit_batch(
    request: HttpRequest,
    response: HttpResponse,
    batch: BatchBody,
    idempotency_key: IdempotencyKey = None,
) -> Status[dict[str, Any]]:
    """Queue all jobs, or none of them. They are stored durably before the answer.

    422: each of `errors` names the job by its `index`. At most 10 000 jobs with those of arrays.
    """
    raws = [new.model_dump() for new in batch.jobs]
    numbers, is_replayed = intake_actions.submit_all(
        raws, caller(request), timezone.now(), idempotency_key, agent_of(request)
    )
    if is_replayed:
        response["Idempotency-Replayed"] = "true"
    return Status(201, {"ids": numbers})


@router.get("", response=JobPage, summary="List jobs", url_name="jobs")
def list_jobs(
    request: HttpRequest,
    state: Annotated[State | None, Query(description="open: not finished.")] = None,
    owner: Annotated[str | None, Query(description="A user's name, or me.")] = None,
    outcome: Annotated[JobOutcome | None, Query(description="How it ended.")] = None,
    name: Annotated[
        str | None, Query(max_length=LONGEST_NAME, description="A part of the name.")
    ] = None,
    tag: Annotated[
        str | None, Query(max_length=LONGEST_TAG, description="A tag: NAME, or NAME=TEXT.")
    ] = None,
    array: Annotated[
        int | None, Query(ge=1, lt=2**63, description="The number of an array.")
    ] = None,
    since: Annotated[Moment | None, Query(description="Submitted at this time or later.")] = None,
    until: Annotated[Moment | None, Query(description="Submitted before this time.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    offset: Annotated[int, Query(ge=0, le=2**31, description="Jobs to skip.")] = 0,
    cursor: Annotated[
        str | None,
        Query(pattern="^[1-9][0-9]{0,17}$", description="From `next`: where the page begins."),
    ] = None,
) -> dict[str, Any]:
    """Newest first; `next` is the address of the following page, also while jobs are added."""
    owner = caller(request).username if owner == "me" else owner
    wanted = job_views.JobFilter(
        state=state or "",
        owner=owner or "",
        outcome=outcome or "",
        name=name or "",
        tag=tag or "",
        array=array,
        since=since,
        until=until,
    )
    rows = job_views.filtered(wanted)
    total = rows.count()
    page = rows.filter(pk__lt=int(cursor)) if cursor else rows
    jobs = list(page[offset : offset + limit + 1])
    more = len(jobs) > limit
    return {
        "jobs": job_views.line_bodies(jobs[:limit]),
        "total": total,
        "next": _next(request, jobs[limit - 1].pk) if more else None,
    }


def _next(request: HttpRequest, last: int) -> str:
    query = {name: value for name, value in request.GET.items() if name != "offset"}
    return f"{reverse('api:jobs')}?{urlencode(query | {'cursor': str(last)})}"


@router.get("{int:job_id}/", response=JobBody, summary="Show a job", url_name="job")
def see(request: HttpRequest, job_id: int) -> dict[str, Any]:
    """State and details. Command, folder and variables are visible to its owner and operators."""
    return job_views.body(_job(job_id), caller(request), timezone.now())


@router.get("{int:job_id}/array/", response=ArrayBody, summary="Show an array", url_name="array")
def array(request: HttpRequest, job_id: int) -> dict[str, Any]:
    """The states of all jobs of the array that this job belongs to."""
    job = _job(job_id)
    if job.array is None:
        raise Http404(f"Job {job_id} belongs to no array.")
    return {"array": job.array, "jobs": relations.element_states(job.array)}


@router.get("{int:job_id}/why/", response=WhyBody, summary="Why a job waits", url_name="job-why")
def why(request: HttpRequest, job_id: int) -> dict[str, Any]:
    """All blockers, the position, the predicted start, what helps, and the priority factors."""
    job, now, viewer = _job(job_id), timezone.now(), caller(request).username
    text = addressed(job_views.verdict(job_views.lines([job])[0]), viewer)
    helps = job_views.advice(
        preview.advice_of(job, now, settings.TIME_ZONE), viewer, now, settings.TIME_ZONE
    )
    body = job_views.why(job, preview.of(job, now), viewer)
    return body | {"text": text, "advice": helps["advice"]}


@router.get(
    "{int:job_id}/advice/",
    response=AdviceBody,
    summary="Changes that start a job earlier",
    url_name="job-advice",
)
def advice(request: HttpRequest, job_id: int) -> dict[str, Any]:
    """Changes of the request. Each was planned forward and makes the start earlier.

    A change is given if it saves at least 30 s and 5 % of the wait. In queues of more than 1000
    jobs, fewer changes are tried.
    """
    job, now = _job(job_id), timezone.now()
    answer = preview.advice_of(job, now, settings.TIME_ZONE)
    return job_views.advice(answer, caller(request).username, now, settings.TIME_ZONE)


@router.post("what-if/", response=WhatIfBody, summary="When would a job start?", url_name="what-if")
def what_if(request: HttpRequest, new: NewJobBody) -> dict[str, Any]:
    """The answer for a job submitted now. Nothing is submitted. 422 as for a submission."""
    now, person = timezone.now(), caller(request)
    new_job = intake_actions.checked_for(new.model_dump(), person, now, agent_of(request))
    new_job = intake_actions.fitted(new_job, person)
    if refusals := intake_actions.refusals(new_job, person):
        raise UnableToSubmit(refusals)
    answer = preview.what_if(new_job, person.username, now)
    suggestion = intake_actions.memory_suggestion(new_job, person)
    return job_views.what_if(answer, suggestion, person.username)


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
        int, Query(ge=1, le=LARGEST_ANSWER, description="Maximum number of bytes.")
    ] = LARGEST_ANSWER,
    tail: Annotated[
        int | None,
        Query(
            ge=1,
            le=LARGEST_ANSWER,
            description="Number of bytes at the end, instead of offset and limit.",
        ),
    ] = None,
    attempt: Annotated[
        int | None, Query(ge=1, le=32767, description="Number of an earlier attempt.")
    ] = None,
) -> HttpResponse:
    """stdout and stderr, in order.

    At most 8 MiB an answer; go on at X-Log-Next-Offset.
    """
    job = _job(job_id)
    if not job_views.may_see_all(job, caller(request)):
        raise HttpError(403, f"Only {job.owner.username} and operators may read this log.")
    number = attempt or job_views.latest_number(job)
    if removed := job_views.log_removed(job, number):
        raise HttpError(410, removed)
    path = files.log_path(Path(settings.DATA), job.pk, number)
    run = next((each for each in job_views.attempts_of(job) if each.number == number), None)
    piece = _log_piece(request, run, path, offset, limit, tail)
    response = HttpResponse(piece.data, content_type="text/plain; charset=utf-8")
    response["X-Log-Next-Offset"] = str(piece.end)
    response["X-Log-Size"] = str(piece.size)
    response["X-Job-State"] = job.state
    response["Cache-Control"] = "no-store"
    # Output of a job must never run as a page of ours.
    response["Content-Security-Policy"] = "sandbox; default-src 'none'"
    return response


def _log_piece(
    request: HttpRequest,
    attempt: Attempt | None,
    path: Path,
    offset: int,
    limit: int,
    tail: int | None,
) -> LogPiece:
    """From the other host, if one has it. 409 with its address if it does not answer."""
    log = elsewhere(attempt, path)
    if log is None:
        return job_logs.tail(path, tail) if tail else job_logs.read(path, offset, limit)
    if not log.address:
        raise HttpError(409, not_read(log, request.get_full_path(), None))
    try:
        return log.tail(tail) if tail else log.read(offset, limit)
    except Unreachable as error:
        raise HttpError(409, not_read(log, request.get_full_path(), error)) from None


@router.post(
    "{int:job_id}/cancel/", response=CancelResponse, summary="Cancel a job", url_name="cancel"
)
def cancel(
    request: HttpRequest,
    job_id: int,
    array: Annotated[bool, Query(description="Cancel all remaining jobs of its array.")] = False,
) -> dict[str, Any]:
    """A waiting job ends at once; a running job gets SIGTERM, then SIGKILL. Idempotent."""
    job, person = _job(job_id), caller(request)
    if not job_views.may_cancel(job, person):
        raise HttpError(403, f"Only {job.owner.username} and operators may cancel this job.")
    check_own(request, job)
    now = timezone.now()
    if array:
        done = job_changes.cancel(_array(job), person.username, now) > 0
    else:
        done = job_changes.request_cancel(job.pk, person.username, now)
    job.refresh_from_db(fields=["state"])
    return {"id": job.pk, "state": job.state, "cancelled": done}


@router.post(
    "{int:job_id}/hold/", response=HoldResponse, summary="Hold a waiting job", url_name="hold"
)
def hold(
    request: HttpRequest,
    job_id: int,
    reason: Annotated[str, Query(max_length=MOST_REASON, description="Visible to all users.")] = "",
    array: Annotated[bool, Query(description="All waiting jobs of its array.")] = False,
) -> dict[str, Any]:
    """The job does not start before it is released. Idempotent."""
    job, person = _job(job_id), caller(request)
    if not job_changes.may_hold(job, person):
        raise HttpError(403, f"Only {job.owner.username} and operators may hold this job.")
    if problem := character_problem(reason, lines=True):
        raise InvalidInput([("reason", problem)])
    jobs = _array(job) if array else Job.objects.filter(pk=job.pk)
    job_changes.hold(jobs, person.username, timezone.now(), " ".join(reason.split()))
    job.refresh_from_db(fields=["state", "held"])
    return {"id": job.pk, "state": job.state, "held": job.held or None}


@router.post("{int:job_id}/release/", response=HoldResponse, summary="Release a held job")
def release(
    request: HttpRequest,
    job_id: int,
    array: Annotated[
        bool, Query(description="All held jobs of its array that you may release.")
    ] = False,
) -> dict[str, Any]:
    """Only operators release jobs that an operator holds."""
    job, person = _job(job_id), caller(request)
    if not job_changes.may_release(job, person):
        raise HttpError(403, f"{job.held or 'It is not yours.'} Ask an operator to release it.")
    jobs = _array(job) if array else Job.objects.filter(pk=job.pk)
    job_changes.release(job_changes.releasable(jobs, person), person.username, timezone.now())
    job.refresh_from_db(fields=["state", "held"])
    return {"id": job.pk, "state": job.state, "held": job.held or None}


@router.patch(
    "{int:job_id}/", response=JobBody, summary="Change a waiting job", url_name="job-change"
)
def change(
    request: HttpRequest,
    job_id: int,
    changes: ChangeBody,
    array: Annotated[bool, Query(description="All waiting jobs of its array.")] = False,
) -> dict[str, Any]:
    """Only the given fields change. 409: the job waits no more.

    422: as for a new job; operators may exceed the quota of the job's owner.
    """
    job, person, now = _job(job_id), caller(request), timezone.now()
    if not job_views.may_cancel(job, person):
        raise HttpError(403, f"Only {job.owner.username} and operators may change this job.")
    jobs = _array(job) if array else Job.objects.filter(pk=job.pk)
    raw = changes.model_dump(exclude_unset=True)
    if raw and not intake_actions.change(jobs, raw, person, now):
        raise HttpError(409, f"Job {job_id} waits no more; only waiting jobs can be changed.")
    return job_views.body(_job(job_id), person, now)


@router.post("{int:job_id}/requeue/", response=RequeueResponse, summary="Put a running job back")
def requeue(request: HttpRequest, job_id: int) -> dict[str, Any]:
    """The job is asked to stop, as by a preemption, and waits again. 409: it has ended."""
    job, person = _job(job_id), caller(request)
    if not job_views.may_cancel(job, person):
        raise HttpError(403, f"Only {job.owner.username} and operators may requeue this job.")
    if job.state == JobState.FINISHED.value:
        raise HttpError(
            409, f"Job {job_id} has ended; submit it again with gpucoord resubmit {job_id}."
        )
    done = yields.requeue(job, person.username, timezone.now())
    job.refresh_from_db(fields=["state"])
    return {"id": job.pk, "state": job.state, "requeued": done}


@router.post(
    "{int:job_id}/resubmit/",
    response={201: SubmitResponse},
    summary="Submit an ended job again",
    url_name="job-resubmit",
)
def resubmit(
    request: HttpRequest,
    response: HttpResponse,
    job_id: int,
    deleted: ResubmitBody,
    idempotency_key: IdempotencyKey = None,
) -> Status[dict[str, Any]]:
    """Queue a new job with the same request. Limits are checked as for any new job.

    Only the owner may, because the new job runs as the owner. Dependencies and the earliest start
    are not repeated. 409: the job has not ended. 422: as for a new job, or a value is missing that
    was deleted when the job ended.
    """
    job, person = _job(job_id), caller(request)
    if job.owner_id != person.pk:
        raise HttpError(403, f"Only {job.owner.username} may submit this job again.")
    check_own(request, job)
    if job.state != JobState.FINISHED.value:
        raise HttpError(409, f"Job {job_id} has not ended.")
    raw = steps.request_of(job, deleted.model_dump())
    number, is_replayed = intake_actions.submit_once(
        raw, person, timezone.now(), idempotency_key, agent_of(request)
    )
    return _submitted(response, number, is_replayed=is_replayed, is_array=bool(raw.get("array")))


def _array(job: Job) -> QuerySet[Job]:
    """All jobs of its array; of a single job, the job."""
    return Job.objects.filter(pk=job.pk) if job.array is None else relations.array_jobs(job.array)


def _job(job_id: int) -> Job:
    job = job_views.jobs().filter(pk=job_id).first() if job_id < 2**63 else None
    if job is None:
        raise Http404(f"There is no job {job_id}.")
    return job


def agent_of(request: HttpRequest) -> Agent | None:
    """The agent whose token the request has."""
    agent: Agent | None = getattr(request, "agent", None)
    return agent


def check_own(request: HttpRequest, job: Job) -> None:
    """Raises HttpError when an agent would act on a job that it did not submit."""
    agent = agent_of(request)
    if agent is not None and job.agent_id != agent.pk:
        raise HttpError(403, "An agent may act on its own jobs only.")
