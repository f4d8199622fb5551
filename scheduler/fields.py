"""What people hand in, field by field: read, or refused with what to write instead."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from scheduler.jobs import After, Dependency, Refusal
from scheduler.units import parse_duration
from scheduler.wishes import parse_indices, parse_numbers

T = TypeVar("T")
LONGEST_COMMAND = 100_000
LONGEST_NAME = 120
LONGEST_PATH = 4096
LONGEST_PATTERN = 100
LARGEST_ENV = 100_000
MOST_GPUS = 32_767
MOST_RETRIES = 20
MOST_DEPENDENCIES = 100
LONGEST_GRACE = timedelta(hours=1)
# What a line of the shell may begin with that is no program.
SHELL_WORDS = {"for", "while", "until", "if", "case", "{", "(", "!", "[", "[["}
OURS = re.compile(r"GPUCOORD_.*|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER")

# What each field wants to be, for whoever wrote something else.
WORDS = {
    "command": "Write the command as one text, as you would type it.",
    "argv": "Write the program and its arguments as a list of texts.",
    "name": f"Write a name of at most {LONGEST_NAME} characters.",
    "priority": "Choose a priority from 1 (background) to 5 (urgent).",
    "gpus": "Write a whole number of GPUs, 0 or more.",
    "gpu_memory": 'Write a size such as "20GiB", or a number of bytes.',
    "exclusive": "Write true or false.",
    "estimate": 'Write a duration such as "2h" or "90 min", or a number of seconds.',
    "time_limit": 'Write a duration such as "2h" or "90 min", or a number of seconds.',
    "env": "Write variables as names with texts, such as LR=0.1.",
    "cwd": "Write a folder that starts with /.",
    "capability": 'Write a compute capability such as "8.0".',
    "model": "Write a part of the GPU's name, such as H100 or RTX*.",
    "power": "Write a rank above 0, such as 300; the page of a GPU shows its own.",
    "on_gpu": "Write the number of a GPU, or its UUID.",
    "gpu_share": "Write a percentage from 1 to 100.",
    "cpus": "Write how many CPUs, such as 4 or 0.5.",
    "memory": 'Write a size such as "16GiB", or a number of bytes.',
    "preemptible": "Write true or false.",
    "requeue": "Write true or false.",
    "yield_signal": "Write a signal such as USR1.",
    "grace": 'Write a duration such as "60s", or a number of seconds.',
    "retries": f"Write how often it may be tried again, 0 to {MOST_RETRIES}.",
    "begin": 'Write a time such as "22:00" or "2026-03-02 22:00", or "in 2h".',
    "after": "Write the numbers of jobs.",
    "after_success": "Write the numbers of jobs.",
    "array": 'Write indices such as "0-9" or "1,3,5".',
    "array_limit": "Write how many may run at a time, 1 or more.",
    "new": 'Write an object, such as {"command": "python train.py"}.',
}


def default_name(words: Sequence[str]) -> str:
    """The program and its first plain argument. All can read it: nothing that may be a secret."""
    rest = list(words)
    while rest and "=" in rest[0]:
        rest.pop(0)
    program, *arguments = rest or ["job"]
    if program in SHELL_WORDS:
        return "shell"
    shown = [program.rpartition("/")[2] or program]
    if arguments and re.fullmatch(r"[\w./+-]*[\w/]", arguments[0]) and arguments[0][0] != "-":
        shown.append(arguments[0].rpartition("/")[2])
    return " ".join(shown)[:LONGEST_NAME]


class Fields:
    """Reads one field after the other and keeps what is wrong."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw
        self.refusals: list[Refusal] = []

    def _refuse(self, field: str, text: str) -> None:
        self.refusals.append(Refusal(field=field, text=text))

    def what_runs(self) -> dict[str, Any]:
        command, argv = self._raw.get("command") or "", tuple(self._raw.get("argv") or ())
        if command.strip() and argv:
            self._refuse("argv", "Give either command or argv, not both.")
        elif argv:
            self._check_text("argv", "".join(argv), LONGEST_COMMAND)
            if not argv[0].strip():
                self._refuse("argv", "The program has no name.")
        elif not command.strip():
            self._refuse("command", "Say what to run, as you would type it.")
        else:
            self._check_text("command", command, LONGEST_COMMAND)
        # A browser sends its lines with CR LF; the shell would take the CR as a part of the word.
        return {"argv": argv} if argv else {"command": command.replace("\r\n", "\n").strip()}

    def name(self) -> str:
        name = " ".join((self._raw.get("name") or "").split())
        self._check_text("name", name, LONGEST_NAME)
        return name or default_name(self._words())

    def _words(self) -> Sequence[str]:
        if self._raw.get("argv"):
            return list(self._raw["argv"])
        beginning = (self._raw.get("command") or "")[:1000]
        try:
            return shlex.split(beginning, comments=True)
        except ValueError:
            return beginning.split()

    def cwd(self) -> str:
        cwd: str = (self._raw.get("cwd") or "").strip()
        self._check_text("cwd", cwd, LONGEST_PATH)
        if cwd and not cwd.startswith("/"):
            self._refuse("cwd", f'"{cwd}" must start with /: gpucoord can\'t know where you are.')
        return cwd

    def env(self) -> dict[str, str]:
        env: dict[str, str] = self._raw.get("env") or {}
        for name, value in env.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                self._refuse("env", f'"{name}" can\'t be the name of a variable.')
            elif OURS.fullmatch(name):
                self._refuse("env", f"{name} is set by gpucoord itself; leave it out.")
            elif not _is_text(value):
                self._refuse("env", f"The value of {name} has a character that can't be used.")
        if sum(len(name) + len(value) for name, value in env.items()) > LARGEST_ENV:
            self._refuse("env", f"All variables together may have {LARGEST_ENV} characters.")
        return dict(env)

    def whole(self, field: str, default: int, least: int, most: int) -> int:
        value = self._raw.get(field)
        if value is None or value == "":
            return default
        if isinstance(value, str):
            value = int(value) if re.fullmatch(r"\s*-?\d{1,9}\s*", value) else None
        if value is None or not least <= value <= most:
            self._refuse(field, WORDS[field])
            return default
        return int(value)

    def amount(self, field: str, parse: Callable[[str], T]) -> T | None:
        if not self._given(field):
            return None
        try:
            return parse(str(self._raw[field]))
        except ValueError as error:
            self._refuse(field, str(error))
            return None

    def flag(self, field: str) -> bool:
        return bool(self._raw.get(field))

    def pattern(self, field: str) -> str:
        text = " ".join(str(self._raw.get(field) or "").split())
        self._check_text(field, text, LONGEST_PATTERN)
        return text

    def number(self, field: str, most: float) -> float | None:
        """A number above 0, in digits or as a number."""
        try:
            value = float(self._given(field) or "nan")
        except ValueError:
            value = -1.0
        if self._given(field) and not 0 < value <= most:
            self._refuse(field, WORDS[field])
        return value if 0 < value <= most else None

    def percent(self, field: str) -> int | None:
        return self.whole(field, 0, 1, 100) if self._given(field) else None

    def seconds(self, field: str) -> timedelta | None:
        """A duration of whole seconds."""
        return self.amount(field, _whole_seconds)

    def grace(self) -> timedelta | None:
        grace = self.seconds("grace")
        if grace is not None and grace > LONGEST_GRACE:
            self._refuse("grace", "At most an hour passes until a job that yields is killed.")
        return grace

    def dependencies(self) -> tuple[Dependency, ...]:
        found: dict[int, After] = {}
        for field, after in (("after", After.END), ("after_success", After.SUCCESS)):
            for number in self._numbers(field):
                found[number] = after
        if len(found) > MOST_DEPENDENCIES:
            self._refuse("after", f"A job may wait for at most {MOST_DEPENDENCIES} others.")
        return tuple(Dependency(on=number, after=after) for number, after in found.items())

    def _numbers(self, field: str) -> tuple[int, ...]:
        value = self._raw.get(field)
        words = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
        try:
            return parse_numbers(str(words or ""))
        except ValueError as error:
            self._refuse(field, str(error))
            return ()

    def array(self) -> dict[str, Any]:
        found = self.amount("array", parse_indices)
        limit = self.whole("array_limit", 0, 1, 32_767) or None
        if limit and found is None and not self._given("array"):
            self._refuse("array_limit", "This is for an array of jobs; write its indices too.")
        if found is None:
            return {}
        return {"array": found[0], "array_limit": limit or found[1]}

    def _given(self, field: str) -> str:
        value = self._raw.get(field)
        return "" if value is None else str(value).strip()

    def _check_text(self, field: str, text: str, longest: int) -> None:
        if len(text) > longest:
            self._refuse(field, f"This has {len(text)} characters; at most {longest} are possible.")
        elif not _is_text(text):
            self._refuse(field, "This has a character that can't be used.")


def _is_text(value: str) -> bool:
    """No NUL, which no program can be given, and no half of a surrogate pair."""
    return "\0" not in value and not re.search(r"[\ud800-\udfff]", value)


def _whole_seconds(text: str) -> timedelta:
    return timedelta(seconds=max(1, round(parse_duration(text).total_seconds())))
