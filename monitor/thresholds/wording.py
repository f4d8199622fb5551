"""Wording of what a setting or threshold accepts, and of names that are misspelt."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

KINDS: dict[Any, str] = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text"
}  # fmt: skip


def expected(field: FieldInfo) -> str:
    """The values that are allowed: `a number from 0 to 100`, `one of red, blue`."""
    kind = plain_type(field.annotation)
    if get_origin(kind) is tuple:
        item = plain_type(get_args(kind)[0])
        if names := choices(item):
            return "a list of some of " + ", ".join(names)
        return "a list of names" if item is str else "a list of numbers"
    if names := choices(kind):
        return "one of " + ", ".join(names)
    return KINDS.get(kind, "text") + _limits(field.metadata)


def plain_type(annotation: Any) -> Any:
    """The type without `| None` and without Annotated."""
    if get_origin(annotation) in {Union, types.UnionType}:
        annotation = next(a for a in get_args(annotation) if a is not type(None))
    return get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation


def choices(kind: Any) -> tuple[str, ...]:
    """The values of an enumeration or a Literal; empty for other types."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    is_enum = isinstance(kind, type) and issubclass(kind, StrEnum)
    return tuple(member.value for member in kind) if is_enum else ()


def _limits(metadata: Iterable[Any]) -> str:
    names = ("ge", "gt", "le", "min_length", "max_length")
    limits = {n: v for m in metadata for n in names if (v := getattr(m, n, None)) is not None}
    low, above, high = (number(limits[n]) if n in limits else "" for n in ("ge", "gt", "le"))
    if "min_length" in limits:
        longest = limits.get("max_length")
        return f" of 1 to {longest} characters" if longest else " that is not empty"
    if above:
        return f" above {above}" + (f" and at most {high}" if high else "")
    if low and high:
        return f" from {low} to {high}"
    return f" of at least {low}" if low else f" of at most {high}" if high else ""


def number(value: object) -> str:
    """80.0 is 80."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def nearest(name: str, names: Collection[str]) -> str:
    """`; did you mean X?`, or an empty text if no name is close."""
    by_folded = {n.casefold(): n for n in names}
    close = get_close_matches(name.casefold(), by_folded, 1, 0.7)
    return f"; did you mean {by_folded[close[0]]}?" if close else ""


def quoted(value: object) -> str:
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
