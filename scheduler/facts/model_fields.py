"""Policy: the fields of a model service, declared once: REST, the admin, its page and the audit."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from msgspec import Struct, field

from monitor.facts.formats import AnswerField
from monitor.facts.input_rules import character_problem
from scheduler.facts.language_models import Role
from scheduler.facts.units import parse_bytes, parse_duration

# Which descriptions of a model service are valid, and the command of an instance.


# No part of a path is empty or consists of dots. The last one is no action of a model's page.
NAME = re.compile(
    r"(?=.{1,100}\Z)[A-Za-z0-9][A-Za-z0-9._:+-]*"
    r"(?:/(?!(?:boot|unload|prompt)\Z)(?=[._]*[A-Za-z0-9:+-])[A-Za-z0-9._:+-]+)*"
)
NAME_SENTENCE = (
    "Write a name of letters, digits and . _ : + - /, such as qwen2.5:14b or Qwen/Qwen2.5-14B."
)
MOST_ALIASES = 20
LARGEST_MIB = 2**31 - 1
MOST_ARGUMENTS, LONGEST_ARGUMENT = 200, 4096
MOST_INSTANCES, MOST_REQUESTS = 64, 4096
PLACEHOLDERS = ("model", "port", "gpu", "gpu_memory_fraction")
_PLACEHOLDER = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")
# Left free beside an instance that has its GPU alone.
MARGIN_BYTES = 256 * 1024**2
LONGEST_BOOT_S = 86_400
NO_PORT = "Write {port} where the program expects its port, such as --port {port}."


class Template(Struct, frozen=True):
    """A command to start from; SOURCE stands for the model's file or name."""

    command: str
    health_path: str = "/health"

    @property
    def needs_source(self) -> bool:
        return SOURCE in self.command.split()


SOURCE = "PATH"
TEMPLATES: Mapping[str, Template] = {
    "vLLM": Template(
        "vllm serve PATH --served-model-name {model} --host 127.0.0.1 --port {port}"
        " --gpu-memory-utilization {gpu_memory_fraction}"
    ),
    "llama.cpp": Template(
        "llama-server --model PATH --alias {model} --host 127.0.0.1 --port {port}"
        " --n-gpu-layers 999"
    ),
    "Ollama": Template(
        "env OLLAMA_HOST=127.0.0.1:{port} OLLAMA_KEEP_ALIVE=-1 ollama serve", health_path="/"
    ),
}

COMMANDS = {name: template.command for name, template in TEMPLATES.items()}


def from_template(name: str, source: str) -> list[str]:
    """The program and arguments of a template, with this file or name of the model."""
    words = TEMPLATES[name].command.split()
    return [source if word == SOURCE else word for word in words]


def program_of(argv: Sequence[str]) -> str:
    """The program that serves; `env NAME=VALUE PROGRAM` is looked through."""
    rest = list(argv)
    if rest and rest[0] == "env":
        rest = [word for word in rest[1:] if "=" not in word]
    return rest[0] if rest else argv[0]


def parse_argv(command: str | Sequence[str]) -> tuple[str, ...]:
    """The program and its arguments; a text is split as a shell would, but no shell runs it.

    Raises ValueError with a sentence.
    """
    if isinstance(command, str):
        try:
            parts = shlex.split(command)
        except ValueError:
            raise ValueError("A quotation mark of the command is not closed.") from None
    else:
        parts = list(command)
    if not parts or not parts[0]:
        raise ValueError("Write the program and its arguments.")
    if len(parts) > MOST_ARGUMENTS or any(len(part) > LONGEST_ARGUMENT for part in parts):
        raise ValueError(
            f"Write at most {MOST_ARGUMENTS} arguments of {LONGEST_ARGUMENT} characters each."
        )
    if not any("{port}" in part for part in parts):
        raise ValueError(NO_PORT)
    return tuple(parts)


def memory_mib(text: str) -> int | None:
    """GPU memory such as "20GiB" in MiB, rounded up; None for "". Raises ValueError."""
    if text == "":
        return None
    size = parse_bytes(text)
    if not 1 <= size // 1024**2 <= LARGEST_MIB:
        raise ValueError("Write a size from 1 MiB to 1 PiB, such as 20GiB.")
    return -(-size // 1024**2)


def filled_argv(argv: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The command with its placeholders filled in; other braces stay as they are."""
    return [_PLACEHOLDER.sub(lambda match: values[match[1]], part) for part in argv]


def memory_fraction(placed_bytes: int | None, total_bytes: int | None) -> str:
    """The placed memory as a part of the GPU's, rounded down; "0" without a GPU."""
    if not placed_bytes or not total_bytes:
        return "0"
    hundredths = min(100, placed_bytes * 100 // total_bytes)
    return f"{max(1, hundredths) / 100:.2f}"


def problems(values: Mapping[str, object]) -> list[tuple[str, str]]:
    """Problems of these columns of a service, by field."""
    faults = []
    name = values.get("name")
    if name is not None and not NAME.fullmatch(str(name)):
        faults.append(("name", NAME_SENTENCE))
    faults += _alias_problems(values.get("aliases"))
    for column in ("health_path", "api_base_path", "sleep_path", "wake_path"):
        if problem := path_problem(str(values.get(column) or "")):
            faults.append((column, problem))
    if not values.get("health_path", "/health"):
        faults.append(("health_path", "Write the path of a health check, such as /health."))
    for column in ("boot_timeout_s", "boot_s"):
        seconds = values.get(column)
        if isinstance(seconds, int) and not 1 <= seconds <= LONGEST_BOOT_S:
            faults.append((column, "Write a time of at least a second, and at most a day."))
    least, most = values.get("min_instances"), values.get("max_instances")
    if isinstance(least, int) and isinstance(most, int) and least > most:
        faults.append(("min_instances", f"Write at most {most}, the largest number of instances."))
    if bool(values.get("sleep_path")) != bool(values.get("wake_path")):
        faults.append(("wake_path", "Write both paths, to sleep and to wake, or none of them."))
    return faults


def _alias_problems(aliases: object) -> list[tuple[str, str]]:
    if not isinstance(aliases, list):
        return []
    if len(aliases) > MOST_ALIASES:
        return [("aliases", f"Write at most {MOST_ALIASES} aliases.")]
    wrong = [alias for alias in aliases if not NAME.fullmatch(str(alias))]
    return [("aliases", f"{wrong[0]!r} is no name. {NAME_SENTENCE}")] if wrong else []


def path_problem(path: str) -> str:
    """Why this cannot be a path of the server; "" = it can, or there is none."""
    if not path:
        return ""
    if not path.startswith("/") or path.startswith("//") or " " in path or "#" in path:
        return "Write a path that starts with /, such as /health."
    return character_problem(path) or ""


LONGEST_KEEP_ALIVE = timedelta(days=3650)
OPERATORS = "Operators only; else null."
PredictionName = Literal["off", "suggest", "automatic"]
RoleName = Literal["brain_primary", "brain_secondary", "worker_or_script"]


class ModelField(Struct, frozen=True):
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
