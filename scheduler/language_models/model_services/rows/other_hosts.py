"""Rows: models whose instances are on other hosts."""

from __future__ import annotations

from collections import Counter

from django.urls import reverse

from monitor.gpus.hosts import rows as hosts
from scheduler.facts.model_services import InstanceState
from scheduler.facts.prompts import Instance
from scheduler.language_models.prompts import wording
from scheduler.models import ModelInstance, ModelService


def elsewhere(row: ModelService, host: str) -> tuple[str, tuple[Instance, ...]]:
    """Where the model runs, if only hosts other than `host` have ready instances; else "".

    With the endpoints there, the one with the fewest requests first. row: one of `services`. An
    instance that boots may still come to this host.
    """
    opened: list[ModelInstance] = row.open_ones  # type: ignore[attr-defined]
    states = {(instance.host, instance.state) for instance in opened}
    names = {at for at, state in states if state == InstanceState.READY.value}
    is_booting = any(state == InstanceState.BOOTING.value for _, state in states)
    if not names or is_booting or names & {"", host}:
        return "", ()
    load: Counter[str] = Counter()
    for instance in opened:
        load[instance.host] += instance.in_flight
    facts = {fact.name: fact for fact in hosts.registered(names)}
    path = reverse("model", args=[row.name])
    pages = {
        name: f"{facts[name].address.rstrip('/')}{path}"
        if name in facts and facts[name].address
        else ""
        for name in sorted(names)
    }
    endpoints = tuple(
        Instance(id=0, url=f"{facts[name].models_address.rstrip('/')}/v1", host=name)
        for name in sorted(facts, key=lambda name: (load[name], name))
        if facts[name].models_address
    )
    return wording.elsewhere(row.name, pages, is_passed_on=bool(endpoints)), endpoints
