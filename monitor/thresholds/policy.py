"""The thresholds of a policy: declarations, validation, layers of values, and accepted values."""

from __future__ import annotations

import json
import types
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct, field

from monitor.facts.thresholds import without_retired

SHIPPED, FILE, OPERATORS = "shipped", "gpucoord.toml", "changed here"
Tables = Mapping[str, Mapping[str, Any]]


class Threshold(Struct, frozen=True, kw_only=True):
    """One field of a policy. A value of None means no limit; `optional` says whether it may be."""

    name: str
    default: Any
    hint: Any
    limits: Meta
    label: str
    help: str
    unit: str
    ge: float | None
    le: float | None

    @property
    def optional(self) -> bool:
        return type(None) in get_args(self.hint)

    @property
    def is_list(self) -> bool:
        return get_origin(self._type) is tuple

    @property
    def kind(self) -> Any:
        """bool, int, float or str, a Literal or an enumeration; of a list the type of its items."""
        return plain_type(get_args(self._type)[0]) if self.is_list else self._type

    @property
    def choices(self) -> tuple[str, ...]:
        return choices(self.kind)

    @property
    def _type(self) -> Any:
        return plain_type(self.hint)

    def read(self, value: Any) -> Any:
        """A value of TOML, JSON or a form, converted; ValueError if it is not allowed."""
        return msgspec.json.decode(json.dumps(value, default=str), type=self.hint)

    def accepts(self, value: Any) -> bool:
        try:
            self.read(value)
        except ValueError:
            return False
        return True

    def plain(self, value: Any) -> Any:
        """The value for JSON."""
        if isinstance(value, tuple):
            return [self.plain(v) for v in value]
        return value.value if isinstance(value, StrEnum) else value

    def in_words(self, value: Any) -> str:
        """`80 %`, `yes`, `blender, obs`, `no limit`."""
        if value is None:
            return "no limit"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, tuple):
            return ", ".join(number(v) for v in value) or "none"
        return " ".join(filter(None, (number(value), self.unit)))


_declared: dict[type[Any], dict[str, Threshold]] = {}


def thresholds(policy_type: type[Any]) -> dict[str, Threshold]:
    """The fields of a policy by name, in their order."""
    if policy_type not in _declared:
        hints = get_type_hints(policy_type)
        _declared[policy_type] = {
            f.name: _threshold(f.name, hints[f.name], f.default, f.metadata)
            for f in fields(policy_type)
        }
    return _declared[policy_type]


def _threshold(name: str, hint: Any, default: Any, metadata: Mapping[str, Any]) -> Threshold:
    limits = Meta(ge=metadata.get("ge"), le=metadata.get("le"))
    kind: Any = plain_type(hint)
    is_list = get_origin(kind) is tuple
    item: Any = get_args(kind)[0] if is_list else kind
    if metadata.get("choices"):
        item = Literal[metadata["choices"]]
    elif limits != Meta():
        item = Annotated[item, limits]
    kind = tuple[item, ...] if is_list else item
    return Threshold(
        name=name,
        default=default,
        hint=kind | None if type(None) in get_args(hint) else kind,
        limits=limits,
        label=metadata.get("label") or name.replace("_", " ").capitalize(),
        help=metadata.get("help", ""),
        unit=metadata.get("unit", ""),
        ge=limits.ge,
        le=limits.le,
    )


def problems(policy_type: type[Any], values: Mapping[str, object]) -> dict[str, str]:
    """{name: the end of a sentence about it} for each value that is not allowed."""
    declared = thresholds(policy_type)
    texts: dict[str, str] = {}
    for name, value in values.items():
        if name not in declared:
            texts[name] = f"is no threshold{nearest(name, declared) or '.'}"
        elif not declared[name].accepts(value):
            expected = accepted_values(declared[name].hint, declared[name].limits)
            texts[name] = f"is {quoted(value)}: it must be {expected}."
    return texts


def conflicts(policy: object) -> dict[str, str]:
    """{field: "it must be below …"} for values of a policy that contradict each other."""
    check = getattr(policy, "conflicts", None)
    return dict(check()) if check else {}


def usable(policy_type: type[Any], values: Mapping[str, object]) -> dict[str, Any]:
    """The values as the policy has them. Unknown names and bad values, which another version of
    gpucoord may have stored, are left out."""
    declared = thresholds(policy_type)
    result = {}
    for name in values.keys() & declared.keys():
        with suppress(ValueError):
            result[name] = declared[name].read(values[name])
    return result


class Layer(Struct, frozen=True):
    """Values of all policies that one source sets; `origin` names it."""

    origin: str
    tables: Tables


class Setting(Struct, frozen=True):
    """A threshold, its value in force and its origin.

    `below`: the value without the last layer. changed_here: by the last layer. `hosts`: values for
    single hosts.
    """

    threshold: Threshold
    value: Any
    origin: str
    below: Any
    below_origin: str
    changed_here: bool = False
    hosts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hosts_in_words(self) -> dict[str, str]:
        return {host: self.threshold.in_words(value) for host, value in self.hosts.items()}

    @property
    def in_words(self) -> str:
        return self.threshold.in_words(self.value)

    @property
    def below_in_words(self) -> str:
        return self.threshold.in_words(self.below)

    @property
    def shipped_in_words(self) -> str:
        return self.threshold.in_words(self.threshold.default)

    @property
    def is_shipped(self) -> bool:
        return bool(self.value == self.threshold.default)


def profile_layer(profile: str, presets: Sequence[Mapping[str, Tables]]) -> Layer:
    """The values that `profile` sets; `presets` are the apps' tables of profiles."""
    merged: dict[str, Mapping[str, Any]] = {}
    for preset in presets:
        merged |= preset.get(profile, {})
    return Layer(f"profile {profile}", merged)


def in_force(policy_type: type[Any], name: str, layers: Sequence[Layer]) -> Any:
    """The policy with the values of `layers`; a later layer overrides an earlier one."""
    values: dict[str, Any] = {}
    for layer in layers:
        if changed := layer.tables.get(name):
            values |= usable(policy_type, changed)
    return policy_type(**values)


def settings(policy_type: type[Any], name: str, layers: Sequence[Layer]) -> list[Setting]:
    """Each threshold with its value and origin."""
    last = layers[-1].origin
    by_layer = [(la.origin, usable(policy_type, la.tables.get(name, {}))) for la in layers]
    result = []
    for threshold in thresholds(policy_type).values():
        stack = [(SHIPPED, threshold.default)]
        stack += [(o, values[threshold.name]) for o, values in by_layer if threshold.name in values]
        origin, value = stack[-1]
        below_origin, below = next(entry for entry in reversed(stack) if entry[0] != last)
        result.append(
            Setting(threshold, value, origin, below, below_origin, changed_here=origin == last)
        )
    return result


def table_problems(
    tables: Mapping[str, object], policies: Mapping[str, type[Any]], under: Layer
) -> list[str]:
    """One sentence for each mistake in the tables of a settings file.

    Values of former thresholds are none: `retired_values` reports them.
    """
    sentences: list[str] = []
    for name, values in without_retired(tables).items():
        if name not in policies:
            hint = nearest(name, policies)
            sentences.append(f"[policy.{name}] is no policy{hint or '.'}")
        elif not isinstance(values, Mapping):
            sentences.append(f"policy.{name} is {quoted(values)}: it must be a table.")
        else:
            sentences += _value_problems(name, values, policies[name], under)
    return sentences


def _value_problems(
    name: str, values: Mapping[str, Any], policy_type: type[Any], under: Layer
) -> list[str]:
    texts = problems(policy_type, values)
    if not texts:
        policy = in_force(policy_type, name, [under, Layer(FILE, {name: values})])
        texts = {
            field: f"is {quoted(getattr(policy, field))}: {text.rstrip('.')}."
            for field, text in conflicts(policy).items()
        }
    return [f"{field} in [policy.{name}] {text}" for field, text in texts.items()]


# Wording of what a setting or threshold accepts, and of names that are misspelt.

KINDS: dict[Any, str] = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text"
}  # fmt: skip


def accepted_values(hint: Any, limits: object) -> str:
    """The values that are allowed: `a number from 0 to 100`, `one of red, blue`.

    limits: has ge, gt, le, min_length and max_length, as `msgspec.Meta`.
    """
    kind = plain_type(hint)
    if get_origin(kind) is tuple:
        item = plain_type(get_args(kind)[0])
        if names := choices(item):
            return "a list of some of " + ", ".join(names)
        return "a list of names" if item is str else "a list of numbers"
    if names := choices(kind):
        return "one of " + ", ".join(names)
    return KINDS.get(kind, "text") + _limits(limits)


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


def _limits(limits: Any) -> str:
    numbers = (limits.ge, limits.gt, limits.le)
    low, above, high = ("" if each is None else number(each) for each in numbers)
    if limits.min_length is not None:
        longest = limits.max_length
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
