"""Rows <-> facts: the thresholds in force, by policy.

Operators' changes (rows) stand over the tables of gpucoord.toml, these over the profile's, these
over the defaults. The loops ask at each step, so that a change in the admin counts within seconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from monitor import audit
from monitor.models import PolicyValues
from monitor.policy import layers, thresholds
from monitor.policy.layers import Layer, Setting
from monitor.prepared import prepared

P = TypeVar("P")
_registered: dict[str, type[Any]] = {}
_presets: list[Mapping[str, layers.Tables]] = []
_topics: dict[str, tuple[str, ...]] = {}
Topics = Mapping[str, tuple[str, ...]]


def register(name: str, kind: type[Any]) -> None:
    """Make a policy known under a short stable name ("hogs")."""
    _registered[name] = kind


def register_all(
    policies: Mapping[str, type[Any]], profiles: Mapping[str, layers.Tables], topics: Topics
) -> None:
    """Make an app's policies known, what profiles preset of them, and what they are about."""
    for name, kind in policies.items():
        register(name, kind)
    if not any(known is profiles for known in _presets):
        _presets.append(profiles)
    _topics.update(topics)


def by_topic() -> dict[str, list[str]]:
    """The names of all policies, under headings."""
    found = {topic: [n for n in names if n in _registered] for topic, names in _topics.items()}
    told = {name for names in found.values() for name in names}
    found["More"] = [name for name in _registered if name not in told]
    return {topic: names for topic, names in found.items() if names}


def registered() -> dict[str, type[Any]]:
    return dict(_registered)


class InForce:
    """All policies at an instant; one query. `of(HogPolicy)` gives one."""

    def __init__(self) -> None:
        changed = {row.name: row.values for row in _changed()}
        self._layers = [*_given(), Layer(layers.HERE, changed)]

    def of(self, kind: type[P]) -> P:
        policy: P = layers.in_force(kind, name_of(kind), self._layers)
        return policy

    def settings(self, name: str) -> list[Setting]:
        """Each threshold of a policy with its value, and where that comes from."""
        return layers.explained(_registered[name], name, self._layers)


@prepared
def _changed() -> QuerySet[PolicyValues]:
    return PolicyValues.objects.all()


def current(kind: type[P]) -> P:
    """The policy of this kind as it is in force. For several ask InForce: one query for all."""
    return InForce().of(kind)


def profile() -> str:
    """What this machine is for."""
    return str(settings.CONFIG.profile)


def title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def about(name: str) -> str:
    """What a policy is about: the first sentence of its docstring."""
    return inspect.cleandoc(_registered[name].__doc__ or "").partition("\n\n")[0]


def name_of(kind: type[Any]) -> str:
    return next(name for name, other in _registered.items() if other is kind)


def changes(name: str) -> dict[str, Any]:
    """What operators changed of a policy, in plain values."""
    row = PolicyValues.objects.filter(pk=name).first()
    return dict(row.values) if row else {}


def problems(name: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Why an operator may not set these, by field: bad values, or ones that contradict others."""
    kind = _registered[name]
    if wrong := thresholds.problems(kind, values):
        return wrong
    made = layers.in_force(kind, name, [*_given(), Layer(layers.HERE, {name: values})])
    return thresholds.conflicts(made)


def change(name: str, values: Mapping[str, Any], *, by: str, now: datetime) -> bool:
    """Set all that operators want otherwise than below them; False when that is so already.

    `values` have no problems.
    """
    with transaction.atomic():
        before = changes(name)
        if before == values:
            return False
        PolicyValues.objects.update_or_create(pk=name, defaults={"values": dict(values)})
        audit.note(
            "POLICY_CHANGED",
            f"{by} changed policy {name}: {_difference(name, before, values)}",
            by=by,
            now=now,
            subject=subject(name),
            before=before,
            after=dict(values),
        )
    return True


def subject(name: str) -> str:
    """What the audit calls a policy."""
    return f"policy {name}"


def _difference(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """`clear_s from 60 s to 45 s, …`"""
    kind = _registered[name]
    given = _given()
    old, new = (
        layers.in_force(kind, name, [*given, Layer(layers.HERE, {name: values})])
        for values in (before, after)
    )
    return ", ".join(
        f"{field} from {thresholds.in_words(known, getattr(old, field))}"
        f" to {thresholds.in_words(known, getattr(new, field))}"
        for field, known in thresholds.thresholds(kind).items()
        if before.get(field) != after.get(field)
    )


def _given() -> list[Layer]:
    """What stands under the operators' changes."""
    config = settings.CONFIG
    return [layers.profile_layer(config.profile, _presets), Layer(layers.FILE, config.policy)]
