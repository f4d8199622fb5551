"""Submit an ended job again, with the same request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.facts import job_fields
from scheduler.facts.field_types import JobField
from scheduler.facts.jobs import Refusal
from scheduler.models import Job
from scheduler.submission.intake.policy.new_job import UnableToSubmit

# Fields whose values are deleted when a job ends, since they may be secrets.
DELETED = ("env", "environment", "stdin_base64")
# These come with a new request: left_out belongs to the environment.
GIVEN = (*DELETED, "left_out")
# These have their JSON in the row; other values are written as a user types them.
STORED_AS_JSON = frozenset(("argv", "script_args", "tags", "limits"))
# The command is chosen below; the earliest start has passed.
LEFT_OUT = frozenset((*GIVEN, "command", "argv", "script", "script_args", "begin", "array_limit"))
SHELL = ["/bin/sh", "-c"]


def request_of(job: Job, given: Mapping[str, Any]) -> dict[str, Any]:
    """The request of a new job like this one, as `POST /api/jobs/` takes it.

    given: the fields of GIVEN. An environment counts only if the job had one. A job of an array
    keeps its index. Raises UnableToSubmit if values that the job had are missing.
    """
    if refusals := _missing(job, given):
        raise UnableToSubmit(refusals)
    fields = {
        field.name: _value(job, field)
        for field in job_fields.stored_fields()
        if field.name not in LEFT_OUT
    }
    if job.gpu_memory_is_learned:
        # It is learned anew.
        fields["gpu_memory"] = None
    if job.array_index is not None:
        fields["array"] = str(job.array_index)
    values = {name: given.get(name) for name in GIVEN}
    if not job.has_environment:
        values["environment"] = None
    return _command(job) | fields | values


def _command(job: Job) -> dict[str, Any]:
    if job.script:
        return {"script": job.script, "script_args": job.script_args}
    if job.argv == [*SHELL, job.command]:
        return {"command": job.command}
    return {"argv": job.argv}


def _value(job: Job, field: JobField) -> Any:
    stored = getattr(job, field.column)
    return stored if field.name in STORED_AS_JSON else field.type.to_text(stored)


def _missing(job: Job, given: Mapping[str, Any]) -> list[Refusal]:
    refusals = []
    values = given.get("env") or {}
    if missing := [name for name in job.env_names if name not in values]:
        text = f"The values of {', '.join(missing)} were deleted when the job ended; give them."
        refusals.append(Refusal(field="env", text=text))
    if job.has_environment and given.get("environment") is None:
        text = "The environment of the job was deleted when it ended; give one, or {}."
        refusals.append(Refusal(field="environment", text=text))
    if job.has_input and given.get("stdin_base64") is None:
        text = "The standard input of the job was deleted when it ended; give one."
        refusals.append(Refusal(field="stdin_base64", text=text))
    return refusals
