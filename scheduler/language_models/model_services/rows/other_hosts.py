"""Rows: models whose instances are on other hosts."""

from __future__ import annotations

from django.urls import reverse

from monitor.gpus.hosts import rows as hosts
from scheduler.facts.model_services import InstanceState
from scheduler.language_models.prompts import wording
from scheduler.models import ModelInstance, ModelService


def elsewhere(row: ModelService, host: str) -> str:
    """Where to send requests, if only hosts other than `host` have ready instances; else "".

    row: one of `services`. An instance that boots may still come to this host.
    """
    opened: list[ModelInstance] = row.open_ones  # type: ignore[attr-defined]
    states = {(instance.host, instance.state) for instance in opened}
    names = {at for at, state in states if state == InstanceState.READY.value}
    is_booting = any(state == InstanceState.BOOTING.value for _, state in states)
    if not names or is_booting or names & {"", host}:
        return ""
    addresses = {fact.name: fact.address for fact in hosts.registered(names)}
    path = reverse("model", args=[row.name])
    pages = {name: addresses.get(name, "").rstrip("/") for name in sorted(names)}
    return wording.elsewhere(row.name, {name: at and f"{at}{path}" for name, at in pages.items()})
