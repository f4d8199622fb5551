"""Facts: a fact from a record with the same attributes, such as a row."""

from __future__ import annotations

from typing import Any, TypeVar

Fact = TypeVar("Fact")


def fact_from(kind: type[Fact], record: object, /, **others: Any) -> Fact:
    """The dataclass `kind` with `others`, and the attributes of the record for all other fields."""
    names = kind.__dataclass_fields__.keys() - others.keys()  # type: ignore[attr-defined]
    return kind(**{name: getattr(record, name) for name in names}, **others)
