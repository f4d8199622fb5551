"""Policy: the thresholds of a policy, read from its dataclass, and which values they may have."""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from difflib import get_close_matches
from enum import StrEnum
from math import isfinite
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

KINDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a list",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """One field of a policy. `kind` is bool, int, float, str or tuple; `item`: what is in a tuple.

    optional: None is a value too, and means that there is no limit. made: makes the stored text a
    member of its enumeration.
    """

    name: str
    kind: type
    default: Any
    label: str
    help: str = ""
    unit: str = ""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    optional: bool = False
    item: type = str
    made: type[StrEnum] | None = None

    def wanted(self) -> str:
        """What it takes, in words: `a number from 0 to 100`."""
        if self.choices:
            some = "a list of some of " if self.kind is tuple else "one of "
            return some + ", ".join(self.choices)
        if self.kind is tuple:
            return f"a list of {'names' if self.item is str else 'numbers'}"
        return KINDS[self.kind] + self._bounds()

    def _bounds(self) -> str:
        if self.least is not None and self.most is not None:
            return f" from {self.least:g} to {self.most:g}"
        if self.least is not None:
            return f" of at least {self.least:g}"
        return f" of at most {self.most:g}" if self.most is not None else ""

    def accepts(self, value: Any) -> bool:
        if value is None:
            return self.optional
        if self.kind is tuple:
            is_list = isinstance(value, list | tuple)
            return is_list and all(self._is(self.item, v) and self._in_bounds(v) for v in value)
        return self._is(self.kind, value) and self._in_bounds(value)

    def _is(self, kind: type, value: object) -> bool:
        if kind is bool or isinstance(value, bool):
            return kind is bool and isinstance(value, bool)
        if kind is float:
            return isinstance(value, int | float) and isfinite(value)
        return isinstance(value, kind)

    def _in_bounds(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if isinstance(value, str | bool):
            return True
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )

    def read(self, value: Any) -> Any:
        """An accepted value, as the policy has it: 1 is 1.0 for a number, a list a tuple."""
        if value is None:
            return None
        made = self.made or self.item
        return tuple(made(v) for v in value) if self.kind is tuple else made(value)

    def plain(self, value: Any) -> Any:
        """The value as JSON has it."""
        if isinstance(value, tuple):
            return [self.plain(v) for v in value]
        return value.value if isinstance(value, StrEnum) else value


_known: dict[type[Any], dict[str, Threshold]] = {}


def thresholds(kind: type[Any]) -> dict[str, Threshold]:
    """The fields of a policy by name, in their order."""
    if kind not in _known:
        hints = get_type_hints(kind)
        _known[kind] = {field.name: _threshold(field, hints[field.name]) for field in fields(kind)}
    return _known[kind]


def problems(kind: type[Any], values: Mapping[str, object]) -> dict[str, str]:
    """What is wrong with each of `values`, as the end of a sentence about it."""
    known = thresholds(kind)
    found: dict[str, str] = {}
    for name, value in values.items():
        if name not in known:
            found[name] = f"is no threshold{nearest(name, known) or '.'}"
        elif not known[name].accepts(value):
            found[name] = f"is {shown(value)}: it must be {known[name].wanted()}."
    return found


def conflicts(policy: object) -> dict[str, str]:
    """Which of a policy's values contradict each other: {field: "it must be below …"}."""
    ask = getattr(policy, "conflicts", None)
    return dict(ask()) if ask else {}


def read(kind: type[Any], values: Mapping[str, object]) -> dict[str, Any]:
    """Of `values` those that can be used, as the policy has them; the rest is of other times."""
    known = thresholds(kind)
    usable = {n: v for n, v in values.items() if n in known and known[n].accepts(v)}
    return {name: known[name].read(value) for name, value in usable.items()}


def in_words(threshold: Threshold, value: Any) -> str:
    """A value as people read it: `80 %`, `yes`, `blender, obs`, `no limit`."""
    if value is None:
        return "no limit"
    if threshold.kind is bool:
        return "yes" if value else "no"
    if threshold.kind is tuple:
        return ", ".join(number(v) for v in value) or "none"
    return " ".join(filter(None, (number(value), threshold.unit)))


def number(value: object) -> str:
    """80.0 is 80."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def nearest(name: str, known: Collection[str]) -> str:
    """`; did you mean X?`, or nothing when no known name is near."""
    by_folded = {k.casefold(): k for k in known}
    close = get_close_matches(name.casefold(), by_folded, 1, 0.7)
    return f"; did you mean {by_folded[close[0]]}?" if close else ""


def shown(value: object) -> str:
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _threshold(field: Field[Any], hint: Any) -> Threshold:
    kind, optional = _without_none(hint)
    is_list = get_origin(kind) is tuple
    item = get_args(kind)[0] if is_list else kind
    choices: tuple[str, ...] = tuple(field.metadata.get("choices", ()))
    made = item if isinstance(item, type) and issubclass(item, StrEnum) else None
    if made is not None:
        choices = choices or tuple(member.value for member in made)
    elif get_origin(item) is Literal:
        choices = choices or get_args(item)
    item = str if choices else item
    return Threshold(
        name=field.name,
        kind=tuple if is_list else item,
        default=field.default if field.default_factory is MISSING else field.default_factory(),
        label=_sentence(field.metadata.get("label") or field.name.replace("_", " ")),
        help=_sentence(field.metadata.get("help", "")),
        unit=field.metadata.get("unit", ""),
        least=field.metadata.get("least"),
        most=field.metadata.get("most"),
        choices=choices,
        optional=optional,
        item=item,
        made=made,
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return kinds[0], len(kinds) < len(get_args(hint))
