"""Send a task: a prompt of class llm, or a job of class script; a repeated id sends once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from scheduler.facts.jobs import Refusal
from scheduler.facts.language_models import DEFAULT_PRIORITY, NewPrompt, PromptType
from scheduler.language_models.prompts import rows as prompts
from scheduler.models import Job, ModelService, Prompt, SubmissionKey
from scheduler.submission.intake import actions as intake
from scheduler.submission.intake.actions import KEPT, KEY_HEADER, request_digest
from scheduler.submission.intake.policy import UnableToSubmit
from scheduler.submission.scripts import rows as scripts
from scheduler.submission.task_records.policy import RECORD_FIELDS, NewTask, TaskClass, job_fields

OTHER_RECORD = "This id was used for another task; use a new one."
NAME_A_MODEL = "Name the model: {names}."


def send(
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
