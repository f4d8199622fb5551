"""Policy: which descriptions of a model service are valid, and the command of an instance."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monitor.facts.input_rules import character_problem
from scheduler.facts.units import parse_bytes

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


@dataclass(frozen=True, slots=True)
class Template:
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
    for field in ("health_path", "api_base_path", "sleep_path", "wake_path"):
        if problem := path_problem(str(values.get(field) or "")):
            faults.append((field, problem))
    if not values.get("health_path", "/health"):
        faults.append(("health_path", "Write the path of a health check, such as /health."))
    for field in ("boot_timeout_s", "boot_s"):
        seconds = values.get(field)
        if isinstance(seconds, int) and not 1 <= seconds <= LONGEST_BOOT_S:
            faults.append((field, "Write a time of at least a second, and at most a day."))
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
