"""Policy: the values in force, from the shipped defaults upwards: profile, file, operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monitor.policy import thresholds
from monitor.policy.thresholds import Threshold

SHIPPED, FILE, HERE = "shipped", "gpucoord.toml", "changed here"
Tables = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Layer:
    """Values of all policies that one source sets; `origin` names it."""

    origin: str
    tables: Tables


@dataclass(frozen=True, slots=True)
class Setting:
    """A threshold, its value in force and where that comes from; `below`: without operators."""

    threshold: Threshold
    value: Any
    origin: str
    below: Any
    below_origin: str

    @property
    def changed_here(self) -> bool:
        return self.origin == HERE

    @property
    def in_words(self) -> str:
        return thresholds.in_words(self.threshold, self.value)

    @property
    def below_in_words(self) -> str:
        return thresholds.in_words(self.threshold, self.below)

    @property
    def shipped_in_words(self) -> str:
        return thresholds.in_words(self.threshold, self.threshold.default)

    @property
    def is_shipped(self) -> bool:
        return bool(self.value == self.threshold.default)


def profile_layer(profile: str, presets: Sequence[Mapping[str, Tables]]) -> Layer:
    """What `profile` sets; `presets` are the apps' tables of profiles."""
    merged: dict[str, Mapping[str, Any]] = {}
    for preset in presets:
        merged |= preset.get(profile, {})
    return Layer(f"profile {profile}", merged)


def in_force(kind: type[Any], name: str, layers: Sequence[Layer]) -> Any:
    """The policy with what `layers` set, the later over the earlier."""
    values: dict[str, Any] = {}
    for layer in layers:
        if changed := layer.tables.get(name):
            values |= thresholds.read(kind, changed)
    return kind(**values)


def explained(kind: type[Any], name: str, layers: Sequence[Layer]) -> list[Setting]:
    """Each threshold with its value and its origin; the last layer is the operators'."""
    found = []
    read = [(layer.origin, thresholds.read(kind, layer.tables.get(name, {}))) for layer in layers]
    for threshold in thresholds.thresholds(kind).values():
        stack = [(SHIPPED, threshold.default)]
        stack += [(o, values[threshold.name]) for o, values in read if threshold.name in values]
        origin, value = stack[-1]
        below_origin, below = next(entry for entry in reversed(stack) if entry[0] != HERE)
        found.append(Setting(threshold, value, origin, below, below_origin))
    return found


def table_problems(
    tables: Mapping[str, object], policies: Mapping[str, type[Any]], under: Layer
) -> list[str]:
    """A sentence for each thing that is wrong with the tables of a settings file."""
    found: list[str] = []
    for name, values in tables.items():
        if name not in policies:
            hint = thresholds.nearest(name, policies)
            found.append(f"[policy.{name}] is no policy{hint or '.'}")
        elif not isinstance(values, Mapping):
            found.append(f"policy.{name} is {thresholds.shown(values)}: it must be a table.")
        else:
            found += _value_problems(name, values, policies[name], under)
    return found


def _value_problems(
    name: str, values: Mapping[str, Any], kind: type[Any], under: Layer
) -> list[str]:
    wrong = thresholds.problems(kind, values)
    if not wrong:
        made = in_force(kind, name, [under, Layer(FILE, {name: values})])
        wrong = {
            field: f"is {thresholds.shown(getattr(made, field))}: {text.rstrip('.')}."
            for field, text in thresholds.conflicts(made).items()
        }
    return [f"{field} in [policy.{name}] {text}" for field, text in wrong.items()]
