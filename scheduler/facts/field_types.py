"""Types of a job's fields: how a value is read, stored and shown. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, Flag, auto
from typing import Any

from scheduler.facts import field_parsers as parsers
from scheduler.facts import people
from scheduler.facts.field_parsers import (
    LONGEST_COMMAND,
    LONGEST_NAME,
    LONGEST_PATH,
    LONGEST_PATTERN,
    Parser,
)
from scheduler.facts.jobs import PRIORITIES, NoticeKind
from scheduler.facts.units import (
    LONGEST_INDICES,
    LONGEST_TEXT,
    YIELD_SIGNALS,
    parse_capability,
    parse_indices,
    parse_moment,
    parse_signal,
)

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
        parse=parsers.integer_parser(least, most),
        schema={"minimum": least, "maximum": most},
        choices=choices,
        metavar="N",
    )


def number(most: float) -> FieldType:
    """A number above 0."""
    return FieldType(
        kind=Kind.NUMBER,
        json=float | int,
        parse=parsers.number_parser(most),
        schema={"exclusiveMinimum": 0},
        to_text=_number_text,
        metavar="N",
    )


COMMAND = _text(parsers.parse_command, LONGEST_COMMAND, kind=Kind.LINES)
ARGV = FieldType(kind=Kind.WORDS, json=list[str], parse=parsers.parse_argv)
NAME = _text(parsers.parse_name, LONGEST_NAME, "NAME")
FOLDER = _text(parsers.parse_folder, LONGEST_PATH, "FOLDER")
PATTERN = _text(parsers.parse_pattern, LONGEST_PATTERN, "WORDS")
HOST = _text(parsers.parse_host, parsers.LONGEST_HOST, "HOST")
FLAG = FieldType(
    kind=Kind.FLAG,
    json=bool,
    parse=parsers.parse_flag,
    to_text=bool,
    expected="Write true or false.",
)
PRIORITY = integer(
    min(PRIORITIES), max(PRIORITIES), [(str(n), f"{n} {word}") for n, word in PRIORITIES.items()]
)
SIZE = FieldType(
    kind=Kind.TEXT,
    json=int | str,
    parse=parsers.parse_size,
    schema=SHORT,
    to_text=_size_text,
    suffix="_bytes",
    metavar="SIZE",
    json_help="A JSON integer is in bytes; a text needs a unit.",
)
DURATION = _duration_type(parsers.parse_duration)
GRACE = _duration_type(parsers.parse_grace)
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
    parse=parsers.parse_job_numbers,
    metavar="JOBS",
    expected="Write the numbers of jobs.",
)
NOTICES = FieldType(
    kind=Kind.TEXT,
    json=str | list[str],
    parse=parsers.parse_notices,
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
    parse=parsers.parse_variables,
    schema={"propertyNames": {"pattern": r"^[^\s=\0]+$"}},
    metavar="NAME=VALUE",
)
UMASK = FieldType(
    kind=Kind.TEXT,
    json=str,
    parse=parsers.parse_umask,
    schema={"pattern": "^0?[0-7]{1,3}$"},
    to_text=lambda value: "" if value is None else f"{value:03o}",
)
LIMITS = FieldType(
    kind=Kind.WORDS,
    json=dict[str, int | str],
    parse=parsers.parse_limits,
    schema={"propertyNames": {"enum": list(people.NAMES)}},
    to_column=lambda value: value or {},
    to_text=tags_text,
)
GROUP = _text(parsers.parse_group, LONGEST_NAME, "GROUP")
LEFT_OUT = FieldType(
    kind=Kind.WORDS,
    json=dict[str, str],
    parse=parsers.parse_left_out,
    to_column=lambda value: value or {},
    to_text=lambda value: "\n".join(f"{name}: {why}" for name, why in value.items()),
)
TAGS = FieldType(
    kind=Kind.TAGS,
    json=dict[str, str] | list[str],
    parse=parsers.parse_tags,
    to_column=lambda value: value or {},
    to_text=tags_text,
    metavar="NAME=TEXT",
)
SCRIPT = _text(parsers.parse_name, 64, "NAME")
ARGUMENTS = FieldType(
    kind=Kind.WORDS,
    json=dict[str, Any],
    parse=parsers.parse_arguments,
    to_column=lambda value: value or {},
)
INPUT = FieldType(kind=Kind.INPUT, json=str, parse=parsers.parse_input)


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
