"""Parsers of a job's fields: from JSON or a form to a value. Standard library only."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from monitor.facts.input_rules import (
    CHARACTER_SENTENCE,
    character_problem,
    holds_unstorable,
    is_storable,
)
from scheduler.facts import people, units
from scheduler.facts.jobs import NoticeKind, parse_kinds
from scheduler.facts.scripts import Script
from scheduler.facts.units import LONGEST_TEXT, parse_bytes, parse_numbers, quoted

LONGEST_COMMAND = 100_000
LONGEST_NAME = 120
LONGEST_PATH = 4096
LONGEST_PATTERN = 100
LONGEST_HOST = 100
LARGEST_ENV = 100_000
# Of the names and reasons of what did not reach the job, in characters; and of each of them.
LARGEST_LEFT_OUT, LONGEST_LEFT_OUT = 50_000, 300
MOST_DEPENDENCIES = 100
# At most this many wrong variables are listed; there may be thousands.
MOST_ENV_REFUSALS = 5
MOST_TAGS = 16
LONGEST_TAG_NAME = 40
LONGEST_TAG = 200
TAG_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_TAG_NAME - 1}}}")
SMALLEST_MEMORY = 1024**2
# Of the standard input, in bytes. The body of a request takes 2.5 MiB, as base64.
MOST_STDIN = 1024**2
LONGEST_GRACE = timedelta(hours=1)
# Variables that gpucoord itself sets, and its token. GPUCOORD_URL lets a job use its commands.
OURS = re.compile(r"GPUCOORD_(?!URL$).*|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER")
# Also of functions that a shell exports, such as BASH_FUNC_module%%.
VARIABLE_NAME = re.compile(r"[^\s=\0]+")
STDIN_TOO_LARGE = (
    "The standard input has more than 1 MiB. Write it to a file that the job reads instead."
)


def _no_script(name: str) -> Script:
    raise ValueError("Scripts can't be run here.")


@dataclass(frozen=True, slots=True)
class ParseContext:
    """Context of some values: the time, the time zone, GPUs and scripts of this server.

    find_gpu: the UUID for an index or a UUID's beginning; raises ValueError with a sentence.
    find_script: the script of a name; raises ValueError with a sentence. places: values that
    gpucoord fills into the words of scripts.
    """

    now: datetime
    zone: str
    find_gpu: Callable[[str], str]
    find_script: Callable[[str], Script] = _no_script
    places: Mapping[str, str] = field(default_factory=dict)


# Reads a value from JSON or from a form. Raises ValueError with one sentence or several; without
# a sentence, the field says what to write.
Parser = Callable[[Any, ParseContext], Any]


def check_text(text: str, longest: int) -> str:
    """The same text. Raises ValueError when it is too long or can't be stored."""
    if len(text) > longest:
        raise ValueError(f"This has {len(text)} characters; at most {longest} are possible.")
    if not is_storable(text):
        raise ValueError(CHARACTER_SENTENCE)
    return text


def parse_command(value: Any, _context: ParseContext) -> str:
    # A browser sends its lines with CR LF; the shell would take the CR as a part of the word.
    return check_text(value, LONGEST_COMMAND).replace("\r\n", "\n").strip()


def parse_argv(value: Any, _context: ParseContext) -> tuple[str, ...]:
    # The separators count too, because many arguments may be empty.
    check_text(" ".join(value), LONGEST_COMMAND)
    if not value[0].strip():
        raise ValueError("The program has no name.")
    return tuple(value)


def parse_name(value: Any, _context: ParseContext) -> str:
    name = " ".join(value.split())
    problems = []
    try:
        check_text(name, LONGEST_NAME)
    except ValueError as error:
        problems.append(str(error))
    if (problem := character_problem(name)) and is_storable(name):
        problems.append(problem)
    if problems:
        raise ValueError(*problems)
    return name


def parse_folder(value: Any, _context: ParseContext) -> str:
    folder = check_text(value.strip(), LONGEST_PATH)
    if not folder.startswith("/"):
        raise ValueError(f"{quoted(folder)} must start with /: it can't be relative.")
    return folder


def parse_pattern(value: Any, _context: ParseContext) -> str:
    return check_text(" ".join(str(value).split()), LONGEST_PATTERN)


def parse_host(value: Any, _context: ParseContext) -> str:
    """ "" stands for any host."""
    name = check_text(" ".join(str(value).split()), LONGEST_HOST)
    return "" if name == "any" else name


def parse_flag(value: Any, _context: ParseContext) -> bool:
    return bool(value)


def parse_size(value: Any, _context: ParseContext) -> int:
    """In bytes; at least 1 MiB."""
    size = parse_bytes(f"{value} B" if isinstance(value, int | float) else str(value))
    if size < SMALLEST_MEMORY:
        raise ValueError(f"{size} bytes is less than 1 MiB; write it like 20GiB or 512MiB.")
    return size


def parse_duration(value: Any, _context: ParseContext) -> timedelta:
    """In whole seconds, at least one."""
    duration = units.parse_duration(f"{value} s" if isinstance(value, int | float) else str(value))
    return timedelta(seconds=max(1, round(duration.total_seconds())))


def parse_grace(value: Any, context: ParseContext) -> timedelta:
    grace = parse_duration(value, context)
    if grace > LONGEST_GRACE:
        raise ValueError("At most an hour passes until a job that yields is killed.")
    return grace


def parse_job_numbers(value: Any, _context: ParseContext) -> tuple[int, ...]:
    if isinstance(value, list | tuple):
        # One more than allowed is enough to be refused.
        value = " ".join(map(str, value[: MOST_DEPENDENCIES + 1]))
    return parse_numbers(str(value))


def parse_notices(value: Any, _context: ParseContext) -> tuple[NoticeKind, ...]:
    if isinstance(value, list | tuple):
        # One more than there are is enough to be refused.
        value = " ".join(map(str, value[: len(NoticeKind) + 1]))
    return parse_kinds(str(value)[:LONGEST_TEXT])


def parse_variables(value: Any, _context: ParseContext) -> dict[str, str]:
    # The separators count too, because many variables may be tiny.
    if sum(len(name) + len(text) + 1 for name, text in value.items()) > LARGEST_ENV:
        raise ValueError(f"All variables together may have {LARGEST_ENV} characters.")
    problems = (_variable_problem(name, text) for name, text in value.items())
    if first := list(islice(filter(None, problems), MOST_ENV_REFUSALS)):
        raise ValueError(*first)
    return dict(value)


def _variable_problem(name: str, value: str) -> str:
    """Why this variable can't be set; "" = it can."""
    if not VARIABLE_NAME.fullmatch(name) or not is_storable(name):
        return f"{quoted(name)} can't be the name of a variable."
    if OURS.fullmatch(name):
        return f"{name[:60]} is set by gpucoord itself; leave it out."
    if not is_storable(value):
        return f"The value of {name[:60]} has a character that can't be used."
    return ""


def parse_tags(value: Any, _context: ParseContext) -> dict[str, str]:
    """From an object, from a list of NAME=TEXT or NAME, or from such lines."""
    if isinstance(value, str):
        value = [line for line in value.splitlines() if line.strip()]
    if len(value) > MOST_TAGS:
        raise ValueError(f"A job has at most {MOST_TAGS} tags.")
    parts = value.items() if isinstance(value, dict) else map(_name_and_text, value)
    tags: dict[str, str] = {}
    for given, text in parts:
        name = given.strip()
        if name in tags:
            raise ValueError(f"The tag {quoted(name)} is given more than once.")
        tags[name] = " ".join(text.split())
    if problems := list(filter(None, (_tag_problem(name, text) for name, text in tags.items()))):
        raise ValueError(*problems[:MOST_ENV_REFUSALS])
    return tags


def _name_and_text(tag: str) -> tuple[str, str]:
    name, _, text = tag.partition("=")
    return name, text


def _tag_problem(name: str, text: str) -> str:
    """Why this can't be a tag; "" = it can."""
    if not TAG_NAME.fullmatch(name):
        return (
            f"{quoted(name)} can't be the name of a tag; use at most {LONGEST_TAG_NAME} letters,"
            " digits and . _ -"
        )
    if len(text) > LONGEST_TAG:
        return f"The tag {name} has {len(text)} characters; at most {LONGEST_TAG} are possible."
    return character_problem(text) or ""


def parse_umask(value: Any, _context: ParseContext) -> int:
    if not re.fullmatch(r"0?[0-7]{1,3}", value):
        raise ValueError
    return int(value, 8)


def parse_limits(value: Any, _context: ParseContext) -> dict[str, int | str]:
    problems = (people.problem(name, amount) for name, amount in value.items())
    if first := list(islice(filter(None, problems), MOST_ENV_REFUSALS)):
        raise ValueError(*first)
    return dict(value)


def parse_group(value: Any, _context: ParseContext) -> str:
    name = check_text(value.strip(), LONGEST_NAME)
    if (problem := character_problem(name)) or ":" in name:
        raise ValueError(problem or "The name of a group has no colon.")
    return name


def parse_left_out(value: Any, _context: ParseContext) -> dict[str, str]:
    if sum(len(name) + len(why) + 1 for name, why in value.items()) > LARGEST_LEFT_OUT:
        raise ValueError(f"All names and reasons may have {LARGEST_LEFT_OUT} characters.")
    for text in (text for pair in value.items() for text in pair):
        check_text(text, LONGEST_LEFT_OUT)
        if problem := character_problem(text):
            raise ValueError(problem)
    return dict(value)


def parse_input(value: Any, _context: ParseContext) -> bytes:
    if len(value) > MOST_STDIN * 4 // 3 + 4:
        raise ValueError(STDIN_TOO_LARGE)
    try:
        data = base64.b64decode(value, validate=True)
    except ValueError:
        raise ValueError from None
    if len(data) > MOST_STDIN:
        raise ValueError(STDIN_TOO_LARGE)
    return data


def integer_parser(least: int, most: int) -> Parser:
    def parse(value: Any, _context: ParseContext) -> int:
        if isinstance(value, str):
            value = int(value) if re.fullmatch(r"\s*-?[0-9]{1,9}\s*", value) else least - 1
        if not least <= value <= most:
            raise ValueError
        return int(value)

    return parse


def number_parser(most: float) -> Parser:
    """For a number above 0, in digits or as a number."""

    def parse(value: Any, _context: ParseContext) -> float:
        text = str(value).strip()[:LONGEST_TEXT]
        try:
            amount = float(text if text.isascii() else "nan")
        except ValueError:
            amount = -1.0
        if not 0 < amount <= most:
            raise ValueError
        return amount

    return parse


def parse_arguments(value: Any, _context: ParseContext) -> dict[str, Any]:
    """The arguments of a script; its schema is checked elsewhere."""
    if not isinstance(value, dict):
        raise ValueError("Write the arguments as an object of names with values.")
    if holds_unstorable(value):
        raise ValueError(CHARACTER_SENTENCE)
    return value
