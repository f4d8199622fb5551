"""The shapes of the job API: what comes in, and the fields that go out."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ninja import Schema
from pydantic import ConfigDict, Field, create_model

from monitor.api import RequestBody, answer_model
from scheduler.facts.blockers import TIER_WORDS
from scheduler.facts.field_types import Door, JobField
from scheduler.facts.job_answers import ATTEMPT_ANSWERS, JOB_ANSWERS, LISTED
from scheduler.facts.job_fields import BY_NAME, JOB_FIELDS, OWNERS_CHANGE, fields_of
from scheduler.facts.jobs import JobState
from scheduler.submission.intake.steps import GIVEN

# The schema says it too: exactly one of them is given.
NO_SCRIPT: dict[str, Any] = {
    "script": {"type": "null"},
    "script_args": {"anyOf": [{"type": "null"}, {"type": "object", "maxProperties": 0}]},
}
COMMAND_ALONE: dict[str, Any] = {
    "title": "A shell line",
    "required": ["command"],
    "properties": {
        "command": {"type": "string", "pattern": "\\S"},
        "argv": {"anyOf": [{"type": "null"}, {"type": "array", "maxItems": 0}]},
        **NO_SCRIPT,
    },
}
ARGV_ALONE: dict[str, Any] = {
    "title": "A program with its arguments",
    "required": ["argv"],
    "properties": {
        "argv": {"type": "array", "minItems": 1, "prefixItems": [{"pattern": "\\S"}]},
        "command": {"type": "null"},
        **NO_SCRIPT,
    },
}
SCRIPT_ALONE: dict[str, Any] = {
    "title": "A registered script",
    "required": ["script"],
    "properties": {
        "script": {"type": "string", "pattern": "\\S"},
        "argv": {"anyOf": [{"type": "null"}, {"type": "array", "maxItems": 0}]},
        "command": {"type": "null"},
    },
}


def field_schema(field: JobField) -> tuple[Any, Any]:
    extra = dict(field.type.schema) or None
    return field.annotation, Field(
        field.default, description=field.rest_help, json_schema_extra=extra
    )


_JobFields: Any = create_model(  # type: ignore[call-overload]
    "_JobFields",
    __base__=RequestBody,
    **{field.name: field_schema(field) for field in fields_of(Door.REST)},
)


# Standard input may be empty, also that of a job that had another one.
EMPTY_INPUT = frozenset({"stdin_base64"})


class NewJobBody(_JobFields):  # type: ignore[misc]  # its fields follow from the table
    """The new job. One of `command`, `argv` and `script` is required; others are optional."""

    takes_blank = EMPTY_INPUT
    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [COMMAND_ALONE, ARGV_ALONE, SCRIPT_ALONE],
            "examples": [
                {
                    "command": "python train.py --epochs 3",
                    "gpus": 1,
                    "gpu_memory": "20GiB",
                    "time_limit": "2h",
                }
            ],
        },
    )


_Changes: Any = create_model(  # type: ignore[call-overload]
    "_Changes",
    __base__=RequestBody,
    **{field.name: field_schema(field) for field in JOB_FIELDS if field.name in OWNERS_CHANGE},
)


class ChangeBody(_Changes):  # type: ignore[misc]  # its fields follow from the table
    """The fields to change. null resets a field to its default."""


_Deleted: Any = create_model(  # type: ignore[call-overload]
    "_Deleted",
    __base__=RequestBody,
    **{name: field_schema(BY_NAME[name]) for name in GIVEN},
)


class ResubmitBody(_Deleted):  # type: ignore[misc]  # its fields follow from the table
    """Values that were deleted when the job ended. One that the job had is required."""

    takes_blank = EMPTY_INPUT


MOST_IN_BATCH = 5000


class BatchBody(RequestBody):
    """New jobs, each as in `POST /api/jobs/`. All are submitted, or none."""

    jobs: list[NewJobBody] = Field(min_length=1, max_length=MOST_IN_BATCH)


class BatchResponse(Schema):
    ids: list[int] = Field(
        description="The number of each job, in the order of the request; of an array, its first."
    )


class SubmitResponse(Schema):
    """The new job; of an array, its first job."""

    id: int
    state: JobState
    url: str
    array: list[int] | None = Field(None, description="The jobs of the array, in order.")
    left_out: dict[str, str] = Field(
        description="Parts of the request and its shell that do not reach the job, with the reason."
    )


class ArrayMember(Schema):
    """A job of an array, as all may see it."""

    id: int
    index: int
    state: JobState
    outcome: str | None
    has_started: bool


class ArrayBody(Schema):
    """All jobs of an array, by index."""

    array: int = Field(description="The number of its first job.")
    jobs: list[ArrayMember]


class BlockerBody(Schema):
    """A reason why a job waits."""

    code: str
    text: str
    tier: str = Field(
        "",
        description=f"One of: {', '.join(TIER_WORDS.values())}.",
    )
    requested: str | None = None
    available: str | None = None
    holder: str | None = None
    until: datetime | None = None
    gpu: int | None = Field(None, description="Index of the GPU.")
    job: int | None = Field(
        None, description="The job that holds the GPU, or that this job waits for."
    )
    array: int | None = Field(None, description="The array that this job waits for.")
    user: str | None = Field(None, description="The user of the quota or time window.")
    never: bool = Field(False, description="Waiting cannot lift it.")
    headline: str = Field("", description="The reason with at most one figure.")
    next_step: str = Field("", description="The condition or action that lifts it.")


class HeadlineBody(Schema):
    """The headline reason; the other blockers are further checks."""

    code: str
    headline: str = Field(description="The reason in one sentence.")
    next_step: str = Field(description="The condition or action that lifts it.")


class GpuUseBody(Schema):
    """GPU use of an ended attempt. null: not measured well enough."""

    gpu_s: float = Field(description="Seconds for which it had its GPUs, times their number.")
    sm_s: float | None = Field(description="GPU-seconds used.")
    coverage_pct: float | None = Field(description="Measured part of its time on the GPUs.")
    mean_pct: float | None = Field(description="Mean utilisation of its GPUs.")
    p95_pct: float | None = Field(description="Utilisation that 95 % of its minutes stay below.")
    peak_memory_bytes: int | None = Field(description="On the GPU where it took most.")
    joules: float | None


class MemorySuggestionBody(Schema):
    """GPU memory that earlier runs of the same command needed."""

    memory_bytes: int
    peak_bytes: int = Field(description="The highest peak of these runs.")
    runs: int
    text: str


_Attempt = answer_model("_Attempt", Schema, ATTEMPT_ANSWERS)


class AttemptBody(_Attempt):  # type: ignore[misc,valid-type]  # its fields follow from the table
    gpu_use: GpuUseBody | None = Field(description="A few seconds after its end.")


_Listed = answer_model("_Listed", Schema, LISTED)


class JobLine(_Listed):  # type: ignore[misc,valid-type]  # its fields follow from the table
    """A job with the fields that all users may see."""


class ResultBody(Schema):
    """Result that a job has written to GPUCOORD_RESULT_FILE."""

    task_id: int
    output: Any = None
    duration: float | None = Field(description="Run time in seconds.")
    problem: str | None = Field(None, description="Why there is no output.")


_Full = answer_model("_Full", JobLine, (f for f in JOB_ANSWERS if not f.is_listed))


class JobBody(_Full):  # type: ignore[misc,valid-type]  # its fields follow from the table
    """A job in full. Fields that only its owner and operators may see are null for others."""

    blockers: list[BlockerBody]
    result: ResultBody | None = Field(description="null: it has written none.")
    attempts: list[AttemptBody]


class JobPage(Schema):
    jobs: list[JobLine]
    total: int = Field(description="The number of jobs on all pages.")
    next: str | None = Field(description="The address of the next page.")


class CancelResponse(Schema):
    id: int
    state: JobState
    cancelled: bool = Field(description="False: there was nothing left to do.")


class RequeueResponse(Schema):
    id: int
    state: JobState
    requeued: bool = Field(description="False: it waits already, or is being stopped.")


class HoldResponse(Schema):
    id: int
    state: JobState
    held: str | None = Field(description="Why it does not start; null: it is not held.")


class FactorBody(Schema):
    """A priority factor."""

    name: str
    value: float = Field(description="0..1; more is sooner.")
    weight: float
    text: str


class AdviceLine(Schema):
    """A change with which the job is planned to start earlier."""

    change: dict[str, Any] = Field(
        description="Fields for PATCH /api/jobs/N/; null resets one. held: release it. ask: the "
        "user whose processes hold memory of the GPU with the index `gpu`."
    )
    text: str = Field(description="The change and its effect in one sentence.")
    expected_start: datetime | None = Field(description="Median of the start with the change.")
    earlier_s: float = Field(
        description="By how much earlier the job starts. If its start is unknown without the "
        "change, counted from the horizon of forecasts, 60 days."
    )


class WhyBody(Schema):
    """Why a job waits, and when it may start. Times are estimates: they change as jobs end."""

    id: int
    name: str
    state: JobState
    text: str = Field(description="State and reason in one sentence.")
    blockers: list[BlockerBody]
    headline: HeadlineBody | None = None
    position: int | None = Field(description="1 is served next; null: it does not wait.")
    starts_p50: datetime | None = Field(description="Median of the predicted start; null: unknown.")
    starts_p90: datetime | None = Field(description="90 % quantile of the predicted start.")
    starts_after: datetime | None = Field(
        description="The last of the 400 starts that are predicted, if this job is not among them."
    )
    factors: list[FactorBody]
    advice: list[AdviceLine] = Field(
        [], description="Changes that start it earlier, best first; as of `/api/jobs/N/advice/`."
    )


class AdviceBody(Schema):
    """The reason why a job waits, and the changes that let it start earlier, the best first."""

    reason: str = Field(description="Until when it waits, too, if no change helps.")
    advice: list[AdviceLine]


class WhatIfBody(Schema):
    """The prediction for a job that was not submitted."""

    starts_now: bool
    blockers: list[BlockerBody]
    headline: HeadlineBody | None = None
    position: int | None
    starts_p50: datetime | None
    starts_p90: datetime | None
    starts_after: datetime | None
    gpu_memory_suggestion: MemorySuggestionBody | None = None
