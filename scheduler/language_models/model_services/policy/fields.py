"""Policy: the fields of a model service, declared once: REST, the admin, its page and the audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from typing import Any, Literal

from monitor.facts.answers import AnswerField
from scheduler.facts.model_services import Role
from scheduler.facts.units import parse_duration
from scheduler.language_models.model_services.policy.services import (
    MOST_ALIASES,
    MOST_INSTANCES,
    MOST_REQUESTS,
    memory_mib,
    parse_argv,
)

LONGEST_KEEP_ALIVE = timedelta(days=3650)
OPERATORS = "Operators only; else null."
PredictionName = Literal["off", "suggest", "automatic"]
RoleName = Literal["brain_primary", "brain_secondary", "worker_or_script"]


@dataclass(frozen=True, slots=True)
class ModelField:
    """A column that operators set.

    json: its type in requests. help: for all doors, json_help: for requests alone. name: in
    requests; "" = the column. read: makes the column of a request; ValueError: a sentence.
    limits: of the value in requests. title: of the form and of the page of the model. missing: the
    page's word for no value; "" = no row. answer: as it goes out, if not as the column.
    """

    column: str
    json: Any
    title: str
    help: str = ""
    _: KW_ONLY
    json_help: str = ""
    name: str = ""
    read: Callable[[Any], Any] | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    missing: str = ""
    answer: AnswerField | None = None

    @property
    def request_name(self) -> str:
        return self.name or self.column

    @property
    def out(self) -> AnswerField:
        return self.answer or AnswerField(self.column, self.json)

    @property
    def label(self) -> str:
        """Of the form, with the unit of the column."""
        units = {"s": " (seconds)", "mib": " (MiB)"}
        return self.title + units.get(self.column.rpartition("_")[2], "")


def _seconds(value: str | float) -> int:
    text = f"{value} s" if isinstance(value, int | float) else value
    duration = parse_duration(text) if text != "0 s" else timedelta()
    if duration > LONGEST_KEEP_ALIVE:
        raise ValueError("Write a duration of at most ten years.")
    return round(duration.total_seconds())


def _path(column: str, title: str, help: str) -> ModelField:
    return ModelField(column, str, title, help, limits={"max_length": 200})


def _count(column: str, title: str, help: str, least: int, most: int, zero: str = "") -> ModelField:
    return ModelField(column, int, title, help, limits={"ge": least, "le": most}, missing=zero)


def _time(column: str, title: str, json_help: str = "") -> ModelField:
    """A duration that a service always has."""
    name, answer = column.removesuffix("_s"), AnswerField(column, int)
    return ModelField(
        column, str | float, title, json_help=json_help, name=name, read=_seconds, answer=answer
    )


MODEL_FIELDS = (
    ModelField(
        "name",
        str,
        "Name",
        "Letters, digits and . _ : + - /. It cannot be changed later.",
        limits={"json_schema_extra": {"maxLength": 100}, "examples": ["qwen2.5:14b"]},
    ),
    ModelField(
        "aliases",
        list[str],
        "Aliases",
        "Further names in requests, such as gpt-4o.",
        limits={"json_schema_extra": {"maxItems": MOST_ALIASES}, "examples": [["gpt-4o"]]},
    ),
    ModelField(
        "enabled",
        bool,
        "Enabled",
        "A disabled model starts no instance: its prompts wait, and its endpoint answers 503.",
    ),
    ModelField(
        "argv",
        str | list[str],
        "Command",
        "The program and its arguments; no shell runs it. {model}, {port}, {gpu} and"
        " {gpu_memory_fraction} are filled in.",
        json_help="One text or a list.",
        name="command",
        read=lambda value: list(parse_argv(value)),
        limits={"examples": ["llama-server --model /models/q.gguf --alias {model} --port {port}"]},
        answer=AnswerField("command", list[str] | None, OPERATORS, source="argv", is_private=True),
    ),
    _path("health_path", "Health path", "Status below 400 once the model is loaded. Ollama has /."),
    _path("api_base_path", "Path of the API", "Of the OpenAI-compatible API of an instance."),
    _count(
        "gpus",
        "GPUs of each instance",
        "0: the model runs on the CPU.",
        0,
        64,
        "none: on the CPU",
    ),
    ModelField(
        "memory_mib",
        str | int,
        "GPU memory",
        "Memory on each GPU. Empty: a whole GPU until the peak is known, then 1.1 times the peak.",
        json_help='Such as "20GiB"; a JSON integer is in bytes.',
        name="gpu_memory",
        read=lambda value: memory_mib(f"{value} B" if isinstance(value, int) else value),
        missing="not declared: a whole GPU until its peak is known",
        answer=AnswerField("gpu_memory_bytes", int | None),
    ),
    ModelField(
        "on_gpus",
        list[str],
        "Only on these GPUs",
        json_help="UUIDs, or numbers as text.",
        limits={"max_length": 64},
    ),
    _count("min_instances", "Least instances", "This number stays loaded.", 0, MOST_INSTANCES, "0"),
    _count(
        "max_instances", "Most instances", "Requests start no more instances.", 1, MOST_INSTANCES
    ),
    _count(
        "concurrency",
        "Requests of an instance at a time",
        "Requests that an instance answers at a time.",
        1,
        MOST_REQUESTS,
    ),
    ModelField(
        "role",
        RoleName,
        "Role",
        "With a brain role, no job and no other model gets the GPUs that are named below.",
        answer=AnswerField("role", Role),
    ),
    ModelField("pin", bool, "Never evicted", "It keeps its GPU while jobs wait."),
    ModelField(
        "prediction",
        PredictionName,
        "Prediction",
        "From the same hour of earlier weeks. suggest: the page shows how many instances the next"
        " hour needs. automatic: they are started before the hour.",
    ),
    ModelField(
        "keep_alive_s",
        str | float,
        "Unload when idle for",
        "Empty: it is not unloaded for being idle.",
        json_help='Such as "5min"; a number is in seconds. "never": it stays.',
        name="keep_alive",
        read=lambda value: None if value == "never" else _seconds(value),
        missing="never",
        answer=AnswerField("keep_alive_s", int | None),
    ),
    _time("min_residency_s", "Least time between boot and eviction", "Such as 60s."),
    _time("boot_timeout_s", "Time for a boot"),
    ModelField(
        "boot_s",
        str | float,
        "Usual time of a boot",
        "It counts until the first boot is measured. Empty: by the size of the model.",
        json_help='Such as "90s".',
        name="usual_boot",
        read=lambda value: _seconds(value) if value != "" else None,
        answer=AnswerField("boot_s", int | None, "As stated by an operator; null: by its size."),
    ),
    _path(
        "sleep_path",
        "Sleep path",
        "Such as /sleep?level={level}: it unloads the model and keeps the process."
        " Empty: the process is stopped.",
    ),
    _path("wake_path", "Wake path", "Such as /wake_up: it loads the model again."),
    ModelField(
        "account",
        str,
        "Runs as",
        "OS account of the processes. Empty: gpucoord-models if it exists, else an unused uid.",
        json_help="Administrators only.",
        limits={"max_length": 150},
    ),
)
# Names in requests of the columns that have another one there.
REQUEST_NAMES = {field.column: field.request_name for field in MODEL_FIELDS}
