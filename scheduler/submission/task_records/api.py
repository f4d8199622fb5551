"""Policy: task records. One shape for prompts to models (llm) and runs of scripts (script)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from msgspec import Struct, field
from ninja import Field, Query, Router, Schema
from ninja.errors import HttpError
from ninja.responses import Status
from pydantic import JsonValue

from monitor.api import PlainText, RequestBody, caller
from monitor.models import Gpu
from monitor.pages.requests import InvalidInput
from scheduler.facts.jobs import JobState, Outcome, Refusal
from scheduler.facts.language_models import DEFAULT_PRIORITY, NewPrompt, PromptType
from scheduler.facts.scripts import TaskType
from scheduler.jobs.pages import serialise as job_views
from scheduler.language_models.prompts import rows as prompts
from scheduler.language_models.prompts.api import LONGEST_TEXT
from scheduler.models import Job, ModelInstance, ModelService, Prompt, SubmissionKey
from scheduler.submission.intake import actions as intake
from scheduler.submission.intake.actions import KEPT, KEY_HEADER, request_digest
from scheduler.submission.intake.policy import UnableToSubmit
from scheduler.submission.scripts import rows as scripts

ANY, NO_GPU = "any", "none"
# The fields of a job that stand for a field of a task record.
RECORD_FIELDS = {
    "on_gpu": "gpu_requirement",
    "gpus": "gpu_requirement",
    "host": "gpu_requirement",
    "estimate": "estimated_duration_sec",
}


class TaskClass(StrEnum):
    LLM = "llm"
    SCRIPT = "script"


class TaskStatus(StrEnum):
    """The states of a prompt; a job has the same by `status_of_job`."""

    QUEUED = "queued"
    ASSIGNED = "assigned"
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"


class NewTask(Struct, frozen=True, kw_only=True):
    """A request, as its record has it. gpu_requirement: any, none, or a GPU."""

    task_class: TaskClass
    task_type: str | None = None
    model: str | None = None
    prompt: str | None = None
    script: str | None = None
    script_args: Mapping[str, Any] = field(default_factory=dict)
    priority: int | None = None
    gpu_requirement: str = ANY
    estimated_s: float | None = None


def mistakes(new: NewTask) -> list[tuple[str, str]]:
    """Fields that contradict the class of the task, each with a sentence."""
    if new.task_class is TaskClass.LLM:
        return [*_of_llm(new)]
    return [*_of_script(new)]


def _of_llm(new: NewTask) -> list[tuple[str, str]]:
    types = [kind.value for kind in PromptType]
    wrong = []
    if new.prompt is None:
        wrong.append(("prompt", "A task of class llm needs a prompt."))
    if new.task_type is not None and new.task_type not in types:
        wrong.append(("task_type", f"Of class llm: {', '.join(types)}."))
    if new.script is not None or new.script_args:
        wrong.append(("script", "A task of class llm has no script; its class would be script."))
    if new.gpu_requirement != ANY:
        text = "Write any: the model service decides on which GPU the model is."
        wrong.append(("gpu_requirement", text))
    return wrong


def _of_script(new: NewTask) -> list[tuple[str, str]]:
    wrong = []
    if new.script is None:
        wrong.append(("script", "A task of class script needs the name of a registered script."))
    if new.task_type is not None and new.task_type not in list(TaskType):
        wrong.append(("task_type", f"Of class script: {', '.join(TaskType)}."))
    for name in ("prompt", "model"):
        if getattr(new, name) is not None:
            wrong.append((name, f"A task of class script has no {name}; its class would be llm."))
    return wrong


def job_fields(new: NewTask) -> dict[str, Any]:
    """The fields of `POST /api/jobs/` for a task of class script."""
    raw: dict[str, Any] = {"script": new.script, "script_args": dict(new.script_args)}
    if new.priority is not None:
        raw["priority"] = new.priority
    if new.estimated_s is not None:
        raw["estimate"] = f"{max(1, round(new.estimated_s))} s"
    if new.gpu_requirement == NO_GPU:
        raw["gpus"] = 0
    elif new.gpu_requirement != ANY:
        raw["on_gpu"] = new.gpu_requirement
    return raw


def status_of_job(state: JobState, outcome: Outcome | None) -> TaskStatus:
    """complete: it succeeded. failed: it ended in any other way."""
    if state is JobState.QUEUED:
        return TaskStatus.QUEUED
    if state is JobState.STARTING:
        return TaskStatus.ASSIGNED
    if state is not JobState.FINISHED:
        return TaskStatus.RUNNING
    return TaskStatus.COMPLETE if outcome is Outcome.SUCCEEDED else TaskStatus.FAILED


def states_of(status: TaskStatus) -> tuple[frozenset[JobState], bool | None]:
    """The states of jobs with this status, and whether they succeeded; None = no matter."""
    if status in {TaskStatus.COMPLETE, TaskStatus.FAILED}:
        return frozenset({JobState.FINISHED}), status is TaskStatus.COMPLETE
    return frozenset(s for s in JobState if status_of_job(s, None) is status), None


# REST: task records, one door to prompts (class llm) and to runs of scripts (class script).


# Send a task: a prompt of class llm, or a job of class script; a repeated id sends once.


OTHER_RECORD = "This id was used for another task; use a new one."
NAME_A_MODEL = "Name the model: {names}."


def queue_task(
    new: NewTask, record: Mapping[str, Any], key: str | None, owner: User, now: datetime
) -> tuple[Prompt | Job, bool]:
    """Queue the task; whether an earlier request had the id, which then made it.

    Raises UnableToSubmit with the fields of the record, and what `prompts.send` raises.
    """
    if new.task_class is TaskClass.SCRIPT:
        number, is_replayed = _submit(new, key, owner, now)
        return Job.objects.select_related("owner").get(pk=number), is_replayed
    if key is None:
        return prompts.send(_prompt(new), owner, now), False
    return _send_once(new, request_digest(dict(record)), key, owner, now)


def _submit(new: NewTask, key: str | None, owner: User, now: datetime) -> tuple[int, bool]:
    if new.task_type is not None:
        _check_type(new.script or "", new.task_type)
    try:
        return intake.submit_once(job_fields(new), owner, now, key)
    except UnableToSubmit as error:
        raise UnableToSubmit([_of_record(refusal) for refusal in error.refusals]) from None


def _of_record(refusal: Refusal) -> Refusal:
    if refusal.field == KEY_HEADER:
        return Refusal(field="task_id", text=OTHER_RECORD)
    return replace(refusal, field=RECORD_FIELDS.get(refusal.field, refusal.field))


def _send_once(
    new: NewTask, digest: str, key: str, owner: User, now: datetime
) -> tuple[Prompt, bool]:
    if (earlier := _sent_before(digest, key, owner, now)) is not None:
        return earlier, True
    try:
        with transaction.atomic():
            made = prompts.send(_prompt(new), owner, now)
            intake.forget_old_keys(now)
            SubmissionKey.objects.create(
                user=owner, key=key, digest=digest, prompt=made, created_at=now
            )
            return made, False
    except IntegrityError:
        # A request at the same time was first.
        if (earlier := _sent_before(digest, key, owner, now)) is None:
            raise
        return earlier, True


def _sent_before(digest: str, key: str, owner: User, now: datetime) -> Prompt | None:
    rows = SubmissionKey.objects.select_related("prompt__owner")
    row = rows.filter(user=owner, key=key, created_at__gt=now - KEPT).first()
    if row is None:
        return None
    if row.digest != digest or row.prompt is None:
        raise UnableToSubmit([Refusal(field="task_id", text=OTHER_RECORD)])
    made: Prompt = row.prompt
    return made


def _prompt(new: NewTask) -> NewPrompt:
    return NewPrompt(
        model=new.model or _only_model(),
        messages=({"role": "user", "content": new.prompt or ""},),
        type=PromptType(new.task_type or PromptType.GENERATE),
        priority=new.priority or DEFAULT_PRIORITY,
        parameters={},
    )


def _only_model() -> str:
    names = list(ModelService.objects.order_by("name").values_list("name", flat=True))
    if len(names) == 1:
        return names[0]
    text = NAME_A_MODEL.format(names=", ".join(names)) if names else "There is no model yet."
    raise UnableToSubmit([Refusal(field="model", text=text)])


def _check_type(script: str, task_type: str) -> None:
    try:
        known = scripts.named(script).task_type
    except ValueError as error:
        raise UnableToSubmit([Refusal(field="script", text=str(error))]) from None
    if known != task_type:
        text = f"The script {script} is of the type {known}."
        raise UnableToSubmit([Refusal(field="task_type", text=text)])


router = Router()
LARGEST_ARGUMENTS = 64 * 1024
MOST_LISTED = 500
TASK_TYPES = [kind.value for kind in (*PromptType, *TaskType)]
PROMPT, JOB = "prompt-", "job-"


class NewTaskRecordBody(RequestBody):
    """A task: a prompt to a model, or a run of a registered script."""

    task_id: str | None = Field(
        None,
        min_length=1,
        max_length=255,
        pattern="^[!-~]+$",
        description="Your own id. The same id and body within a day send once.",
    )
    task_class: TaskClass = Field(strict=False)
    task_type: str | None = Field(
        None,
        json_schema_extra={"enum": [*TASK_TYPES, None]},
        description="llm: generate by default. script: the type of the script.",
    )
    model: PlainText | None = Field(None, max_length=100, description="Needed with several models.")
    prompt: str | None = Field(None, max_length=LONGEST_TEXT)
    script: PlainText | None = Field(None, max_length=64, examples=["whisper_transcribe"])
    script_args: dict[str, JsonValue] | None = None
    priority: int | None = Field(None, ge=1, le=5, description="5 is served first.")
    gpu_requirement: PlainText = Field(
        ANY, max_length=100, description="any, none, or a GPU: its UUID or index. llm: any."
    )
    estimated_duration_sec: float | None = Field(None, gt=0, le=10_000_000)


class TaskRecordLine(Schema):
    """A task without its texts."""

    id: str = Field(description="prompt-N or job-N.")
    task_id: str | None = Field(description="The client's id, for a day; to its owner.")
    task_class: TaskClass
    task_type: str | None
    model: str | None
    script: str | None
    owner: str
    priority: int
    status: TaskStatus = Field(description="A job that ended in another way is failed.")
    waits_for: str | None = Field(description="Why it waits, in a sentence.")
    assigned_gpu: int | None = Field(description="Index of its first GPU.")
    host: str | None
    estimated_duration_sec: float | None
    created_at: datetime
    assigned_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None


class TaskRecordBody(TaskRecordLine):
    """With its result, which only its owner sees, of a script operators too."""

    output: JsonValue = None
    error: str | None = Field(None, description="Why it failed.")


class TaskRecordFilters(Schema):
    status: TaskStatus | None = None
    task_class: TaskClass | None = None
    limit: int = Field(100, ge=1, le=MOST_LISTED)


class TaskRecords(Schema):
    tasks: list[TaskRecordLine]


@router.post("", response={201: TaskRecordBody}, summary="Send a task", url_name="tasks")
def send(
    request: HttpRequest, response: HttpResponse, new: NewTaskRecordBody
) -> Status[dict[str, Any]]:
    """Queue a prompt or a run of a script. It is stored durably before the answer.

    404: there is no such model. 422: `errors` says for each field what is wrong. 429: too many of
    your tasks wait.
    """
    record, person = new.model_dump(mode="json"), caller(request)
    task = _new(new)
    try:
        made, is_replayed = queue_task(task, record, new.task_id, person, timezone.now())
    except prompts.UnknownModel as error:
        raise Http404(str(error)) from None
    except prompts.NotAllowed as error:
        raise InvalidInput([("priority", str(error))]) from None
    except prompts.TooLarge as error:
        raise InvalidInput([("prompt", str(error))]) from None
    except prompts.TooMany as error:
        raise HttpError(429, str(error)) from None
    if is_replayed:
        response["Idempotency-Replayed"] = "true"
    return Status(201, _body(made, person))


def _new(body: NewTaskRecordBody) -> NewTask:
    """Raises InvalidInput."""
    arguments = body.script_args or {}
    if len(json.dumps(arguments)) > LARGEST_ARGUMENTS:
        raise InvalidInput([("script_args", "The arguments may have at most 64 KiB.")])
    new = NewTask(
        task_class=body.task_class,
        task_type=body.task_type,
        model=body.model,
        prompt=body.prompt,
        script=body.script,
        script_args=arguments,
        priority=body.priority,
        gpu_requirement=body.gpu_requirement,
        estimated_s=body.estimated_duration_sec,
    )
    if wrong := mistakes(new):
        raise InvalidInput(wrong)
    return new


@router.get("", response=TaskRecords, summary="List tasks", url_name="tasks")
def list_tasks(
    request: HttpRequest, filters: Annotated[TaskRecordFilters, Query()]
) -> dict[str, Any]:
    """Runs of scripts of all users, and your prompts; operators see those of all users.

    By priority, then in the order in which they were sent. Without `status`, those that have not
    ended.
    """
    person, tasks = caller(request), list[Prompt | Job]()
    if filters.task_class is not TaskClass.SCRIPT:
        tasks += _first(_prompts(person, filters.status), "created_at", filters.limit)
    if filters.task_class is not TaskClass.LLM:
        tasks += _first(_jobs(filters.status), "submitted_at", filters.limit)
    tasks.sort(key=lambda task: (-task.priority, _sent_at(task)))
    return {"tasks": _lines(tasks[: filters.limit], person)}


def _first(rows: QuerySet[Any], sent: str, most: int) -> Iterable[Any]:
    return rows.order_by("-priority", sent)[:most]


def _prompts(person: User, status: TaskStatus | None) -> QuerySet[Prompt]:
    rows = Prompt.objects.select_related("owner").defer("messages", "result", "parameters")
    if not person.is_staff:
        rows = rows.filter(owner=person)
    if status is not None:
        return rows.filter(status=status.value)
    return rows.exclude(status__in=[TaskStatus.COMPLETE.value, TaskStatus.FAILED.value])


def _jobs(status: TaskStatus | None) -> QuerySet[Job]:
    rows = job_views.jobs().exclude(script="")
    if status is None:
        return rows.exclude(state=JobState.FINISHED.value)
    states, succeeded = states_of(status)
    rows = rows.filter(state__in=[state.value for state in states])
    if succeeded is None:
        return rows
    did = Q(outcome=Outcome.SUCCEEDED.value)
    return rows.filter(did if succeeded else ~did)


@router.get("{task_id}/", response=TaskRecordBody, summary="Show a task")
def show(request: HttpRequest, task_id: str) -> dict[str, Any]:
    """By its id, or by the id that you gave it within a day. Prompts: its owner and operators."""
    person = caller(request)
    task = _by_own_id(task_id, person) or _by_number(task_id)
    if task is None:
        raise Http404("There is no such task.")
    if isinstance(task, Prompt) and task.owner_id != person.pk and not person.is_staff:
        raise HttpError(403, "Only the owner of a prompt and operators may see it.")
    return _body(task, person)


def _by_own_id(task_id: str, person: User) -> Prompt | Job | None:
    key = SubmissionKey.objects.filter(user=person, key=task_id.replace("\0", "")[:255]).first()
    if key is None:
        return None
    return _by_number(f"{PROMPT}{key.prompt_id}" if key.prompt_id else f"{JOB}{key.job_id}")


def _by_number(text: str) -> Prompt | Job | None:
    for prefix, rows in (PROMPT, Prompt.objects.select_related("owner")), (JOB, job_views.jobs()):
        digits = text.removeprefix(prefix)
        if digits != text and digits.isascii() and digits.isdecimal() and len(digits) <= 18:
            task: Prompt | Job | None = rows.filter(pk=int(digits)).first()
            return task
    return None


def _body(task: Prompt | Job, person: User) -> dict[str, Any]:
    (line,) = _lines([task], person)
    if isinstance(task, Prompt):
        is_own = task.owner_id == person.pk
        return line | {
            "output": (task.result or None) if is_own else None,
            "error": (task.error or None) if is_own else None,
        }
    if not job_views.may_see_all(task, person):
        return line
    result = job_views.result(task) or {}
    return line | {
        "output": result.get("output"),
        "error": task.problem or result.get("problem") or None,
    }


def _lines(tasks: Sequence[Prompt | Job], person: User) -> list[dict[str, Any]]:
    own = _own_ids(tasks, person)
    gpus = _gpus(tasks)
    placed = Gpu.objects.filter(uuid__in={uuid for uuid, _ in gpus.values()})
    indices = dict(placed.values_list("uuid", "index"))
    return [
        _line(task)
        | {
            "task_id": own.get(_id(task)),
            "assigned_gpu": indices.get(uuid),
            "host": host or None,
        }
        for task in tasks
        for uuid, host in [gpus[_id(task)]]
    ]


def _line(task: Prompt | Job) -> dict[str, Any]:
    shared = {"id": _id(task), "owner": task.owner.get_username(), "priority": task.priority}
    if isinstance(task, Prompt):
        return shared | {
            "task_class": TaskClass.LLM,
            "task_type": task.type,
            "model": task.model,
            "script": None,
            "status": task.status,
            "waits_for": task.waits_for or None,
            "estimated_duration_sec": None,
            "created_at": task.created_at,
            "assigned_at": task.assigned_at,
            "started_at": task.started_at,
            "finished_at": task.finished_at,
        }
    attempt = job_views.running_attempt(task)
    outcome = Outcome(task.outcome) if task.outcome else None
    return shared | {
        "task_class": TaskClass.SCRIPT,
        "task_type": task.task_type or None,
        "model": None,
        "script": task.script or None,
        "status": status_of_job(JobState(task.state), outcome),
        "waits_for": job_views.waits_for(task),
        "estimated_duration_sec": task.estimate_s,
        "created_at": task.submitted_at,
        "assigned_at": attempt.placed_at if attempt else None,
        "started_at": task.started_at,
        "finished_at": task.ended_at,
    }


def _gpus(tasks: Iterable[Prompt | Job]) -> dict[str, tuple[str, str]]:
    """The first GPU of each task, "" = none, and its host."""
    numbers = {t.instance for t in tasks if isinstance(t, Prompt) and t.instance is not None}
    instances = dict(ModelInstance.objects.filter(pk__in=numbers).values_list("pk", "gpu_uuids"))
    places = {}
    for task in tasks:
        if isinstance(task, Prompt):
            uuids, host = instances.get(task.instance or 0, []), task.host
        else:
            attempt = job_views.running_attempt(task)
            uuids, host = (attempt.gpu_uuids, attempt.host) if attempt else ([], "")
        places[_id(task)] = (uuids[0] if uuids else "", host)
    return places


def _own_ids(tasks: Iterable[Prompt | Job], person: User) -> dict[str, str]:
    keys = SubmissionKey.objects.filter(user=person)
    tasks = list(tasks)
    mine = keys.filter(
        Q(prompt__in=[task.pk for task in tasks if isinstance(task, Prompt)])
        | Q(job__in=[task.pk for task in tasks if isinstance(task, Job)])
    )
    return {
        f"{PROMPT}{prompt}" if prompt else f"{JOB}{job}": key
        for prompt, job, key in mine.values_list("prompt", "job", "key")
    }


def _id(task: Prompt | Job) -> str:
    return f"{PROMPT if isinstance(task, Prompt) else JOB}{task.pk}"


def _sent_at(task: Prompt | Job) -> datetime:
    return task.created_at if isinstance(task, Prompt) else task.submitted_at
