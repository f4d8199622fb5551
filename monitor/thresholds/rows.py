"""The thresholds in force, by policy.

Precedence: operators' changes for the host, those for all hosts (rows), gpucoord.toml, profile,
defaults. The loops read them at each step, so a change in the admin takes effect within seconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from msgspec.structs import replace

from monitor.facts.thresholds import BY_OPERATORS, IN_SETTINGS, retired, sentence
from monitor.journal.rows import audit
from monitor.models import PolicyValues
from monitor.runtime.rows.database import compiled_once
from monitor.thresholds import policy as policies
from monitor.thresholds.policy import FILE, OPERATORS, Layer, Setting, Tables

P = TypeVar("P")
_registered: dict[str, type[Any]] = {}
_presets: list[Mapping[str, Tables]] = []
# Heading -> name of a policy -> its title.
Topics = Mapping[str, Mapping[str, str]]
_topics: dict[str, Mapping[str, str]] = {}


def register(name: str, kind: type[Any]) -> None:
    """Register a policy under a short stable name ("hogs")."""
    _registered[name] = kind


def register_all(
    policies: Mapping[str, type[Any]], profiles: Mapping[str, Tables], topics: Topics
) -> None:
    """Register an app's policies, the presets of profiles, and the headings with the titles."""
    for name, kind in policies.items():
        register(name, kind)
    if not any(preset is profiles for preset in _presets):
        _presets.append(profiles)
    _topics.update(topics)


def by_topic() -> dict[str, list[str]]:
    """The names of all policies, by heading."""
    topics = {topic: [n for n in names if n in _registered] for topic, names in _topics.items()}
    listed = {name for names in topics.values() for name in names}
    topics["More"] = [name for name in _registered if name not in listed]
    return {topic: names for topic, names in topics.items() if names}


def registered() -> dict[str, type[Any]]:
    return dict(_registered)


# Of each policy: the values that it was last made of, and the policy, which never changes.
_last: dict[type[Any], tuple[str, Any]] = {}


class ThresholdsInForce:
    """All policies at one time, from one query. `of(PresencePolicy)` returns a policy.

    host: the one whose values count; None = this host, "" = only values for all hosts.
    """

    def __init__(self, host: str | None = None) -> None:
        rows = list(_changed())
        self._hosts = {row.name: row.hosts for row in rows}
        self._layers = [*_lower_layers(), Layer(OPERATORS, {row.name: row.values for row in rows})]
        chosen = settings.CONFIG.node if host is None else host
        own = {row.name: row.hosts[chosen] for row in rows if chosen in row.hosts}
        if own or host:
            self._layers.append(Layer(_origin(chosen), own))

    def of(self, kind: type[P]) -> P:
        name = name_of(kind)
        # Not the values themselves, because 1, 1.0 and True are equal.
        given = repr([layer.tables.get(name) for layer in self._layers])
        known = _last.get(kind)
        if known is None or known[0] != given:
            known = _last[kind] = (given, policies.in_force(kind, name, self._layers))
        policy: P = known[1]
        return policy

    def settings(self, name: str) -> list[Setting]:
        """Each threshold of a policy with its value and origin."""
        kind = _registered[name]
        of_hosts = {h: policies.usable(kind, v) for h, v in self._hosts.get(name, {}).items()}
        return [
            replace(each, hosts={h: v[key] for h, v in of_hosts.items() if key in v})
            for each in policies.settings(kind, name, self._layers)
            for key in [each.threshold.name]
        ]


@compiled_once
def _changed() -> QuerySet[PolicyValues]:
    return PolicyValues.objects.all()


def current(kind: type[P]) -> P:
    """One policy in force. For several, use ThresholdsInForce: one query for all."""
    return ThresholdsInForce().of(kind)


def profile() -> str:
    return str(settings.CONFIG.profile)


def title(name: str) -> str:
    titles = (named[name] for named in _topics.values() if name in named)
    return next(titles, name.replace("_", " ").capitalize())


def about(name: str) -> str:
    """The first paragraph of a policy's docstring."""
    return inspect.cleandoc(_registered[name].__doc__ or "").partition("\n\n")[0]


def name_of(kind: type[Any]) -> str:
    return next(name for name, other in _registered.items() if other is kind)


def changes(name: str, host: str = "") -> dict[str, Any]:
    """The operators' changes of a policy, as plain values; with `host`, those for it alone."""
    row = PolicyValues.objects.filter(pk=name).first()
    if row is None:
        return {}
    return dict(row.hosts.get(host, {}) if host else row.values)


def hosts_with_changes() -> set[str]:
    """The hosts that have values of their own."""
    return {host for row in _changed() for host in row.hosts}


def problems(name: str, values: Mapping[str, Any], host: str = "") -> dict[str, str]:
    """Why values are not allowed, by field: invalid values, or conflicts with other values."""
    kind = _registered[name]
    if texts := policies.problems(kind, values):
        return texts
    layers = _layers_with(name, values, host)
    texts = policies.conflicts(policies.in_force(kind, name, layers))
    row = None if host else PolicyValues.objects.filter(pk=name).first()
    for other, own in row.hosts.items() if row else ():
        there = policies.in_force(kind, name, [*layers, Layer(_origin(other), {name: own})])
        for field, text in policies.conflicts(there).items():
            texts.setdefault(field, f"{text.rstrip('.')} on {other}, which has its own values")
    return texts


def change(name: str, values: Mapping[str, Any], *, by: str, now: datetime, host: str = "") -> bool:
    """Replace the operators' changes of a policy; False if they are the same as before.

    host: for it alone. The caller has checked `values` with `problems`.
    """
    with transaction.atomic():
        before = changes(name, host)
        if before == values:
            return False
        PolicyValues.objects.get_or_create(pk=name)
        row = PolicyValues.objects.select_for_update().get(pk=name)
        if host:
            others = {other: own for other, own in row.hosts.items() if other != host}
            row.hosts = others | ({host: dict(values)} if values else {})
        else:
            row.values = dict(values)
        row.save()
        where = f" for {host}" if host else ""
        text = f"{by} changed policy {name}{where}: {_difference(name, before, values, host)}"
        _note(name, text, before, values, by, now)
    return True


def former_policies() -> list[str]:
    """The names of stored policies that are none any more. Their values have no effect."""
    return sorted(row.name for row in _changed() if row.name not in _registered)


def forget(name: str, *, by: str, now: datetime) -> None:
    """Delete the stored values of a former policy."""
    with transaction.atomic():
        before = changes(name)
        PolicyValues.objects.filter(pk=name).delete()
        text = f"{by} deleted the values of the former policy {name}"
        _note(name, text, before, {}, by, now)


def _note(
    name: str,
    text: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    by: str,
    now: datetime,
) -> None:
    audit.note("POLICY_CHANGED", text, by=by, now=now, subject=subject(name),
               before=before, after=dict(after))  # fmt: skip


def retired_values() -> list[str]:
    """A sentence for each source that still sets former thresholds, which has no effect."""
    changed = {row.name: row.values for row in _changed()}
    sources = ((settings.CONFIG.policy, IN_SETTINGS), (changed, BY_OPERATORS))
    return [sentence(names, origin) for tables, origin in sources if (names := retired(tables))]


def subject(name: str) -> str:
    """The subject of a policy's audit entries."""
    return f"policy {name}"


def _difference(name: str, before: Mapping[str, Any], after: Mapping[str, Any], host: str) -> str:
    """`clear_s from 60 s to 45 s, …`; values of former thresholds are removed."""
    kind = _registered[name]
    old, new = (
        policies.in_force(kind, name, _layers_with(name, values, host))
        for values in (before, after)
    )
    declared = policies.thresholds(kind)
    changed = [
        f"{field} from {previous.in_words(getattr(old, field))}"
        f" to {previous.in_words(getattr(new, field))}"
        for field, previous in declared.items()
        if before.get(field) != after.get(field)
    ]
    return ", ".join(changed + [f"{name} removed" for name in before if name not in declared])


def _layers_with(name: str, values: Mapping[str, Any], host: str) -> list[Layer]:
    """The layers of a policy as if these were the operators' changes, for all hosts or one."""
    layers = _lower_layers()
    if not host:
        return [*layers, Layer(OPERATORS, {name: values})]
    return [*layers, Layer(OPERATORS, {name: changes(name)}), Layer(_origin(host), {name: values})]


def _origin(host: str) -> str:
    return f"changed for {host}"


def _lower_layers() -> list[Layer]:
    """The layers below the operators' changes."""
    config = settings.CONFIG
    return [policies.profile_layer(config.profile, _presets), Layer(FILE, config.policy)]
