"""Facts: the declaration of a value that goes out: in REST, on the command line and on pages.

The tables of a subject say which values it has. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from types import NoneType
from typing import Any, TypeVar, get_args

from monitor.facts.formats import duration, gib, percent

UNITS: Mapping[str, Callable[[Any], str]] = {"s": duration, "pct": percent, "bytes": gib}


@dataclass(frozen=True, slots=True)
class AnswerField:
    """A value of a record as it goes out. Unknown is None, at every door.

    name: in REST, with its unit. json: its type there. source: its attribute in the record, or that
    of an attribute; "" = the name. blank: what an empty text stands for; None: for None, if the
    value may be unknown, else for itself.
    is_listed: part of lists, too. is_private: None for users other than the owner and operators.
    for_agents: among the values that AI agents get.
    label: of its row on the command line, title: on the page of the record; "" = it has none there.
    missing: the page's word for an unknown or empty value; "" = no row.
    """

    name: str
    json: Any
    help: str | None = None
    _: KW_ONLY
    source: str = ""
    blank: str | None = None
    is_listed: bool = False
    is_private: bool = False
    for_agents: bool = False
    label: str = ""
    title: str = ""
    missing: str = ""

    @property
    def is_time(self) -> bool:
        return datetime in (self.json, *get_args(self.json))

    @property
    def unit(self) -> str:
        """s, pct or bytes; "" = it has none."""
        end = self.name.rpartition("_")[2]
        return end if end in UNITS else ""

    def text(self, value: Any) -> str:
        """As pages show it; "" = no value."""
        if value in (None, ""):
            return ""
        return UNITS[self.unit](value) if self.unit else str(value)

    def of(self, record: object) -> Any:
        first, _, second = (self.source or self.name).partition(".")
        value: Any = getattr(record, first)
        if second and value is not None:
            value = getattr(value, second)
        is_blank = value == "" and (self.blank is not None or NoneType in get_args(self.json))
        return self.blank if is_blank else value


def values_of(
    fields: Iterable[AnswerField], record: object, *, sees_all: bool = True
) -> dict[str, Any]:
    """By name. sees_all: the viewer may see private values."""
    return {
        field.name: None if field.is_private and not sees_all else field.of(record)
        for field in fields
    }


# A fact from a record with the same attributes, such as a row.


Fact = TypeVar("Fact")


def fact_from(kind: type[Fact], record: object, /, **others: Any) -> Fact:
    """A fact of `kind` with `others`, and the attributes of the record for all other fields."""
    names = kind.__annotations__.keys() - others.keys()
    return kind(**{name: getattr(record, name) for name in names}, **others)
