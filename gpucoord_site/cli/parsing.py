"""The parser of all commands, and the types of options that several commands have."""

from __future__ import annotations

from argparse import Action, ArgumentError, ArgumentParser
from datetime import UTC, datetime
from typing import Any

from scheduler.facts.units import parse_moment

BLANK = "the value is blank; leave the option out"
BLANK_CHANGE = "the value is blank; --reset {name} resets it to its default"
# These count from the moment at which the server reads them.
RELATIVE = ("in ", "+")


class Parser(ArgumentParser):
    """Refuses blank values: in a script they come from a variable that is not set."""

    blank = BLANK

    def _get_values(self, action: Action, arg_strings: list[str]) -> Any:
        if action.option_strings and any(not text.strip() for text in arg_strings):
            name = max(action.option_strings, key=len).lstrip("-")
            raise ArgumentError(action, self.blank.format(name=name))
        return super()._get_values(action, arg_strings)


def clock_time(text: str) -> str:
    """The value of an option: a clock time with the offset of this shell's time zone.

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
