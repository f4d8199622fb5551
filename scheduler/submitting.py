"""What people hand in, from the form or by REST, becomes a NewJob or a list of refusals."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.contrib.auth.models import User

from monitor import store as monitor_store
from monitor.readings import Snapshot
from scheduler import store
from scheduler.jobs import PRIORITIES, NewJob, Refusal, Requirement
from scheduler.models import Job
from scheduler.policy import admission
from scheduler.units import parse_bytes, parse_duration

T = TypeVar("T")
LONGEST_COMMAND = 100_000
LONGEST_NAME = 120
LONGEST_PATH = 4096
LARGEST_ENV = 100_000
MOST_GPUS = 32_767
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
    "new": 'Write an object, such as {"command": "python train.py"}.',
}


class UnableToSubmit(Exception):
    """The job can't be taken as it is; each refusal names a field."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        super().__init__("; ".join(f"{r.field}: {r.text}" for r in refusals))
        self.refusals = tuple(refusals)


def submit(raw: Mapping[str, Any], owner: User, now: datetime) -> Job:
    """Put what was handed in into the queue, or raise UnableToSubmit with all that is wrong."""
    return store.submit(checked(raw), owner, now)


def checked(raw: Mapping[str, Any]) -> NewJob:
    """Read it, and refuse what no host could ever run."""
    new = read(raw)
    if refusals := refuse(new.requirement, monitor_store.newest_all()):
        raise UnableToSubmit(refusals)
    return new


def refuse(requirement: Requirement, hosts: Sequence[Snapshot]) -> list[Refusal]:
    """Why no host could ever run it; of several hosts, what the one with most GPUs says."""
    found = [_refusals(requirement, host) for host in hosts]
    if not found or not all(found):
        return []
    return found[max(range(len(hosts)), key=lambda at: len(hosts[at].gpus))]


def _refusals(requirement: Requirement, host: Snapshot) -> list[Refusal]:
    if not host.gpus and host.probe == "none":
        reason = host.problem or "no NVIDIA driver was found."
        return admission.refuse_without_gpus(requirement, reason)
    return admission.check(requirement, host.gpus)


def read(raw: Mapping[str, Any]) -> NewJob:
    """Check every field, so that a person sees all mistakes at once."""
    reading = _Reading(raw)
    new = NewJob(
        **reading.what_runs(),
        name=reading.name(),
        cwd=reading.cwd(),
        env=reading.env(),
        priority=reading.whole("priority", 3, min(PRIORITIES), max(PRIORITIES)),
        requirement=Requirement(
            gpus=reading.whole("gpus", 1, 0, MOST_GPUS),
            memory_bytes=reading.amount("gpu_memory", parse_bytes),
            exclusive=bool(raw.get("exclusive")),
        ),
        estimate=reading.amount("estimate", _whole_seconds),
        time_limit=reading.amount("time_limit", _whole_seconds),
    )
    if reading.refusals:
        raise UnableToSubmit(reading.refusals)
    return new


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


class _Reading:
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
        value = self._raw.get(field)
        if value is None or str(value).strip() == "":
            return None
        try:
            return parse(str(value))
        except ValueError as error:
            self._refuse(field, str(error))
            return None

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
