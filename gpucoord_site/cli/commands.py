"""Declared commands: arguments, of which parser, help and completion are made, and a function.

It also has the types of options that several commands have, and the exit codes.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from argparse import Action, ArgumentError, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from monitor.facts.input_rules import escaped
from scheduler.facts.units import parse_moment

T = TypeVar("T")
# The same as of `timeout` and docker: 124 a time limit, 125 gpucoord failed, not the command.
REFUSED, USAGE_ERROR, TIMED_OUT, OURS, CANCELLED = 1, 2, 124, 125, 130
BLANK = "the value is blank; leave the option out"
LONGEST_S = 86_400.0
# With one of these, an option says itself whether it takes a value.
VALUED = {"action", "choices", "type"}
# These count from the moment at which the server reads them.
RELATIVE = ("in ", "+")


class Failed(Exception):
    """The command can't do its work; the message says why, and what to do."""


class Argument:
    """Of `ArgumentParser.add_argument`. group: its heading in the help.

    This and Command are no dataclasses, which would take a hundredth of the start of a command.
    """

    def __init__(self, names: Sequence[str], settings: Mapping[str, Any], group: str = "") -> None:
        self.names, self.settings, self.group = names, settings, group

    def add_to(self, parser: Any) -> None:
        parser.add_argument(*self.names, **self.settings)


def arg(spelled: str, about: str, group: str = "", **settings: Any) -> Argument:
    """spelled: as in the help, such as `--tail -n BYTES`.

    An option with no word for its value is a flag, unless it ends with = or has choices or a type.
    """
    names = [word.rstrip("=") for word in spelled.split()]
    if len(names) > 1 and not names[-1].startswith("-"):
        settings["metavar"] = names.pop()
    elif spelled.startswith("-") and not (spelled.endswith("=") or settings.keys() & VALUED):
        settings["action"] = "store_true"
    return Argument(names, {"help": about, **settings}, group)


class Command:
    """Called with the words after its name, it returns the exit code.

    settings: of its parser. `run` raises ArgumentTypeError for options that contradict each other,
    and Failed.
    """

    def __init__(
        self,
        name: str,
        description: str,
        arguments: Sequence[Argument],
        run: Callable[[Namespace], int],
        settings: Mapping[str, Any],
    ) -> None:
        self.name, self.description, self.arguments = name, description, arguments
        self.run, self.settings = run, settings

    def __call__(self, argv: Sequence[str]) -> int:
        parser = self.parser()
        try:
            return self.run(self.read(parser, argv))
        except ArgumentTypeError as error:
            parser.error(str(error))
        except Failed as error:
            return complain(str(error))

    def read(self, parser: Parser, argv: Sequence[str]) -> Namespace:
        return parser.parse_args(argv)

    def parser(self) -> Parser:
        made = Parser(f"gpucoord {self.name}", description=self.description, **self.settings)
        groups: dict[str, Any] = {"": made}
        for argument in self.arguments:
            if argument.group not in groups:
                groups[argument.group] = made.add_argument_group(argument.group)
            argument.add_to(groups[argument.group])
        return made


def command(
    name: str,
    description: str,
    *arguments: Argument,
    kind: type[Command] = Command,
    **settings: Any,
) -> Callable[[Callable[[Namespace], int]], Command]:
    """Declares the function below as a command."""
    return lambda run: kind(name, description, arguments, run, settings)


class Parser(ArgumentParser):
    """Refuses blank values: in a script they come from a variable that is not set."""

    def __init__(
        self,
        prog: str,
        *,
        blank: str = BLANK,
        defaults: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(prog, **settings)
        self.set_defaults(**defaults or {})
        self._blank = blank

    def _get_values(self, action: Action, arg_strings: list[str]) -> Any:
        if action.option_strings and any(not text.strip() for text in arg_strings):
            name = max(action.option_strings, key=len).lstrip("-")
            raise ArgumentError(action, self._blank.format(name=name))
        return super()._get_values(action, arg_strings)


def complain(text: str, code: int = OURS) -> int:
    """Say it on standard error; returns the exit code."""
    for line in text.splitlines():
        sys.stderr.write(f"gpucoord: {escaped(line)}\n")
    sys.stderr.flush()
    return code


def show(options: Namespace, answer: Any, lines: Iterable[str]) -> int:
    """Print the lines, or with --json the answer. Returns 0."""
    text = json.dumps(answer, indent=2) if options.json else "\n".join(map(escaped, lines))
    sys.stdout.write(f"{text}\n")
    return 0


# Types of options.


def in_words(read: Callable[[str], T]) -> Callable[[str], T]:
    """`read`, of which a ValueError says in words what is wrong."""

    def value(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return value


def number(text: str) -> float:
    """JSON has no infinity."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ArgumentTypeError(f"{escaped(text)!r} is not a number")
    return value


def seconds(text: str) -> float:
    """A number of seconds, at most a day."""
    value = number(text)
    if not 0 <= value <= LONGEST_S:
        raise ArgumentTypeError(f"{escaped(text)!r} is not a number of seconds from 0 to 86400")
    return value


def count(text: str) -> int:
    """A whole number, 1 or more."""
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 19 and int(text)):
        raise ArgumentTypeError(f"{escaped(text)!r} is not a whole number, 1 or more")
    return int(text)


def variable(text: str) -> tuple[str, str]:
    """NAME=VALUE, or NAME for its value in this shell."""
    name, equals, value = text.partition("=")
    if not equals:
        if name not in os.environ:
            raise ArgumentTypeError(f"{shlex.quote(name)} is not set here; write NAME=VALUE")
        value = os.environ[name]
    return name, value


def clock_time(text: str) -> str:
    """A clock time with the offset of this shell's time zone.

    Other texts stay as they are: the server reads or refuses them.
    """
    if text.strip().lower().startswith(RELATIVE):
        return text
    try:
        return parse_moment(text, datetime.now(UTC), None).astimezone().isoformat()
    except ValueError:
        return text


def shown_time(value: str) -> str:
    """The value of `clock_time` for a sentence, with its time zone."""
    try:
        return datetime.fromisoformat(value).astimezone().strftime("%Y-%m-%d %H:%M %Z")
    except ValueError:
        return value


JOB = arg("job JOB", "the job's number", type=count)
JOBS = arg("jobs JOB", "numbers of jobs", type=count, nargs="+")
CLEAN_ENV = arg("--clean-env", "do not pass this shell's environment on, only --env")
