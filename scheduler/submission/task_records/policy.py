"""Policy: task records. One shape for prompts to models (llm) and runs of scripts (script)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from scheduler.facts.jobs import JobState, Outcome
from scheduler.facts.language_models import PromptType
from scheduler.facts.scripts import TaskType

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
