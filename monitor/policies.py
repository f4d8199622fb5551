"""Rows <-> facts: the thresholds in force, by policy.

A policy is a frozen dataclass whose fields all have defaults. Apps register theirs in ready(); the
loops ask for what is in force at each step, so that a change in the admin counts within seconds.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from monitor.models import PolicyValues

P = TypeVar("P")
_registered: dict[str, type[Any]] = {}


def register(name: str, kind: type[Any]) -> None:
    """Make a policy known under a short stable name ("hogs")."""
    _registered[name] = kind


def registered() -> dict[str, type[Any]]:
    return dict(_registered)


def current(kind: type[P]) -> P:
    """The policy of this kind with what operators changed."""
    name = next(name for name, other in _registered.items() if other is kind)
    row = PolicyValues.objects.filter(pk=name).first()
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    changed = row.values if row else {}
    return kind(**{key: value for key, value in changed.items() if key in known})
