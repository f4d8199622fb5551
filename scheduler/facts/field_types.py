"""Types of a job's fields: how a value is read, stored and shown. Standard library only."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, Flag, auto
from itertools import islice
from typing import Any

from monitor.facts.input_rules import (
    CHARACTER_SENTENCE,
    character_problem,
    holds_unstorable,
    is_storable,
)
from scheduler.facts import people, units
from scheduler.facts.jobs import PRIORITIES, NoticeKind, parse_kinds
from scheduler.facts.scripts import Script
from scheduler.facts.units import (
    LONGEST_INDICES,
    LONGEST_TEXT,
    YIELD_SIGNALS,
    parse_bytes,
    parse_capability,
    parse_indices,
    parse_moment,
    parse_numbers,
    parse_signal,
    quoted,
)

# Parsers of a job's fields: from JSON or a form to a value. Standard library only.


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


# No size, duration or time is longer as text.
SHORT: Mapping[str, Any] = {"maxLength": LONGEST_TEXT}


class Kind(Enum):
    """Input that the form and the command line offer for a value."""

    TEXT = auto()
    LINES = auto()
    INTEGER = auto()
    NUMBER = auto()
    FLAG = auto()
    CHOICE = auto()
    JOBS = auto()
    VARIABLES = auto()
    WORDS = auto()
    INPUT = auto()
    TAGS = auto()


def _same(value: Any) -> Any:
    return value


def _plain_text(value: Any) -> Any:
    return "" if value is None else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldType:
    """How a value is written.

    json: its type in a request. schema: what OpenAPI says beside it. json_help: the same in words.
    parse: from a request to NewJob. to_column: from NewJob to the job's row. to_text: from the row
    to what a user would type. suffix: the unit at the end of its name in answers. metavar: of the
    option. expected: what to write instead of a wrong value, unless the field says so itself.
    """

    kind: Kind
    json: Any
    parse: Parser
    schema: Mapping[str, Any] = field(default_factory=dict)
    to_column: Callable[[Any], Any] = _same
    to_text: Callable[[Any], Any] = _plain_text
    suffix: str = ""
    choices: Sequence[tuple[str, str]] = ()
    metavar: str = ""
    json_help: str = ""
    expected: str = ""


def _seconds(value: timedelta | None) -> int | None:
    return None if value is None else max(1, round(value.total_seconds()))


def _amount_text(value: int | None, units: Sequence[tuple[str, int]], smallest: str) -> str:
    """In the largest unit that gives a whole number."""
    if value is None:
        return ""
    for unit, factor in units:
        if value % factor == 0:
            return f"{value // factor}{unit}"
    return f"{value}{smallest}"


def _size_text(value: int | None) -> str:
    return _amount_text(value, (("GiB", 1024**3), ("MiB", 1024**2)), " B")


def _duration_text(value: int | None) -> str:
    return _amount_text(value, ((" h", 3600), (" min", 60)), " s")


def _number_text(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def tags_text(value: Mapping[str, Any]) -> str:
    return "\n".join(f"{name}={text}" if text else name for name, text in value.items())


def _text(
    parse: Parser, longest: int = LONGEST_TEXT, metavar: str = "TEXT", kind: Kind = Kind.TEXT
) -> FieldType:
    schema = {"maxLength": longest}
    return FieldType(kind=kind, json=str, parse=parse, schema=schema, metavar=metavar)


def _duration_type(parse: Parser) -> FieldType:
    return FieldType(
        kind=Kind.TEXT,
        json=int | float | str,
        parse=parse,
        schema=SHORT,
        to_column=_seconds,
        to_text=_duration_text,
        suffix="_s",
        metavar="TIME",
        json_help="A JSON number is in seconds; a text needs a unit.",
        expected='Write a duration such as "2h" or "90 min"; a JSON number is in seconds.',
    )


def integer(least: int, most: int, choices: Sequence[tuple[str, str]] = ()) -> FieldType:
    return FieldType(
        kind=Kind.CHOICE if choices else Kind.INTEGER,
        json=int,
        parse=integer_parser(least, most),
        schema={"minimum": least, "maximum": most},
        choices=choices,
        metavar="N",
    )


def number(most: float) -> FieldType:
    """A number above 0."""
    return FieldType(
        kind=Kind.NUMBER,
        json=float | int,
        parse=number_parser(most),
        schema={"exclusiveMinimum": 0},
        to_text=_number_text,
        metavar="N",
    )


COMMAND = _text(parse_command, LONGEST_COMMAND, kind=Kind.LINES)
ARGV = FieldType(kind=Kind.WORDS, json=list[str], parse=parse_argv)
NAME = _text(parse_name, LONGEST_NAME, "NAME")
FOLDER = _text(parse_folder, LONGEST_PATH, "FOLDER")
PATTERN = _text(parse_pattern, LONGEST_PATTERN, "WORDS")
HOST = _text(parse_host, LONGEST_HOST, "HOST")
FLAG = FieldType(
    kind=Kind.FLAG,
    json=bool,
    parse=parse_flag,
    to_text=bool,
    expected="Write true or false.",
)
PRIORITY = integer(
    min(PRIORITIES), max(PRIORITIES), [(str(n), f"{n} {word}") for n, word in PRIORITIES.items()]
)
SIZE = FieldType(
    kind=Kind.TEXT,
    json=int | str,
    parse=parse_size,
    schema=SHORT,
    to_text=_size_text,
    suffix="_bytes",
    metavar="SIZE",
    json_help="A JSON integer is in bytes; a text needs a unit.",
)
DURATION = _duration_type(parse_duration)
GRACE = _duration_type(parse_grace)
CAPABILITY = FieldType(
    kind=Kind.TEXT,
    json=float | int | str,
    parse=lambda value, _context: parse_capability(str(value)),
    schema=SHORT,
    to_column=lambda value: "{}.{}".format(*value) if value else "",
    metavar="X.Y",
)
GPU = FieldType(
    kind=Kind.TEXT,
    json=int | str,
    parse=lambda value, context: context.find_gpu(str(value)),
    schema=SHORT,
    metavar="GPU",
)
MOMENT = _text(
    lambda value, context: parse_moment(str(value), context.now, context.zone), metavar="TIME"
)
SIGNAL = FieldType(
    kind=Kind.CHOICE,
    json=str,
    parse=lambda value, _context: parse_signal(str(value)),
    schema=SHORT,
    choices=[
        ("", "yield file only"),
        *((name, f"yield file and {name}") for name in YIELD_SIGNALS),
    ],
    metavar="SIGNAL",
)
# Parsed into the indices, and the limit after %.
INDICES = _text(lambda value, _context: parse_indices(str(value)), LONGEST_INDICES, "INDICES")
JOBS = FieldType(
    kind=Kind.JOBS,
    json=int | list[int],
    parse=parse_job_numbers,
    metavar="JOBS",
    expected="Write the numbers of jobs.",
)
NOTICES = FieldType(
    kind=Kind.TEXT,
    json=str | list[str],
    parse=parse_notices,
    schema=SHORT,
    to_column=list,
    to_text=", ".join,
    metavar="EVENTS",
    json_help="A text with commas, or a list.",
    expected=f"Write one or more of: {', '.join(NoticeKind)}.",
)
VARIABLES = FieldType(
    kind=Kind.VARIABLES,
    json=dict[str, str],
    parse=parse_variables,
    schema={"propertyNames": {"pattern": r"^[^\s=\0]+$"}},
    metavar="NAME=VALUE",
)
UMASK = FieldType(
    kind=Kind.TEXT,
    json=str,
    parse=parse_umask,
    schema={"pattern": "^0?[0-7]{1,3}$"},
    to_text=lambda value: "" if value is None else f"{value:03o}",
)
LIMITS = FieldType(
    kind=Kind.WORDS,
    json=dict[str, int | str],
    parse=parse_limits,
    schema={"propertyNames": {"enum": list(people.NAMES)}},
    to_column=lambda value: value or {},
    to_text=tags_text,
)
GROUP = _text(parse_group, LONGEST_NAME, "GROUP")
LEFT_OUT = FieldType(
    kind=Kind.WORDS,
    json=dict[str, str],
    parse=parse_left_out,
    to_column=lambda value: value or {},
    to_text=lambda value: "\n".join(f"{name}: {why}" for name, why in value.items()),
)
TAGS = FieldType(
    kind=Kind.TAGS,
    json=dict[str, str] | list[str],
    parse=parse_tags,
    to_column=lambda value: value or {},
    to_text=tags_text,
    metavar="NAME=TEXT",
)
SCRIPT = _text(parse_name, 64, "NAME")
ARGUMENTS = FieldType(
    kind=Kind.WORDS,
    json=dict[str, Any],
    parse=parse_arguments,
    to_column=lambda value: value or {},
)
INPUT = FieldType(kind=Kind.INPUT, json=str, parse=parse_input)


class Door(Flag):
    """Where users may set a field."""

    REST = auto()
    FORM = auto()
    OPTION = auto()
    ALL = REST | FORM | OPTION


class Group(Enum):
    """A section of the form, and of the options of `gpucoord submit`: the two titles."""

    BASICS = ("", "")
    DETAILS = ("Name, folder, variables, estimate", "")
    GPU = ("GPU selection", "GPU selection")
    HOST = ("Host CPUs and memory", "host CPUs and memory")
    START = ("Start time, dependencies, arrays, retries", "start time, arrays and retries")
    YIELD = ("Preemption", "preemption")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobField:
    """A field of a job.

    default: what a request without the field means; None = nothing. initial: what the form shows
    instead. help: for all doors.
    option_help: instead, where the option's default differs. expected: what to write instead of a
    wrong value. example: the form's placeholder. attribute: its path in NewJob; "" = part of
    another one. stored_as: the column of Job; None = named as the attribute, "" = another table.
    summary: the requirement in a few words, from the column's value. is_repeated: whether
    "submit again" fills it in. operators_change: whether the admin can change it while the job
    waits.
    """

    name: str
    type: FieldType
    label: str
    help: str
    expected: str = ""
    group: Group = Group.BASICS
    default: Any = None
    initial: str = ""
    example: str = ""
    option_help: str = ""
    doors: Door = Door.ALL
    attribute: str = ""
    stored_as: str | None = None
    summary: Callable[[Any], str] | None = None
    is_repeated: bool = True
    operators_change: bool = False

    @property
    def column(self) -> str:
        """Of Job; "" = it has none of its own."""
        own = self.attribute.rpartition(".")[2]
        return own if self.stored_as is None else self.stored_as

    @property
    def is_resource(self) -> bool:
        """Whether REST answers list it under `requested`."""
        return self.attribute.startswith("requirement.") or self.group is Group.HOST

    @property
    def short_help(self) -> str:
        """For the command line: in lower case, without a full stop."""
        text = self.option_help or self.help.removesuffix(".")
        return text if text[1:2].isupper() else text[:1].lower() + text[1:]

    @property
    def rest_help(self) -> str:
        return f"{self.help} {self.type.json_help}".strip()

    @property
    def sentence(self) -> str:
        """Advice for a wrong value: the form that is accepted."""
        return self.expected or self.type.expected

    @property
    def option(self) -> str:
        """Of `gpucoord submit`; "" = it has none."""
        return f"--{self.name.replace('_', '-')}" if Door.OPTION in self.doors else ""

    @property
    def answer_name(self) -> str:
        """In REST answers, with its unit."""
        return self.name + self.type.suffix

    @property
    def annotation(self) -> Any:
        """The type of its value in a request."""
        return self.type.json if self.default is not None else self.type.json | None
