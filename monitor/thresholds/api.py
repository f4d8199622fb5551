"""REST: the policies in force: every threshold and target with its value."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Field, Router, Schema

from monitor.thresholds import rows as thresholds
from monitor.thresholds.policy import Setting

router = Router()

Value = bool | int | float | str | list[str] | list[float] | None


class SettingBody(Schema):
    """A threshold or target."""

    name: str
    label: str
    help: str
    unit: str
    value: Value = Field(description="The value in force; null: no limit.")
    text: str = Field(description="The value in words.")
    shipped: Value = Field(description="The value that gpucoord ships with.")
    origin: str = Field(description="Source of the value: default, profile, file or operators.")
    hosts: dict[str, Value] = Field(description="Values that operators set for single hosts.")


class PolicyBody(Schema):
    name: str
    topic: str
    title: str
    about: str
    settings: list[SettingBody]


class Policies(Schema):
    profile: str = Field(description="Profile of this machine; it presets some values.")
    policies: list[PolicyBody]


@router.get("", response=Policies, summary="List the policies in force", url_name="policies")
def list_policies(request: HttpRequest) -> dict[str, Any]:
    """Every threshold and target, as the page of rules shows them."""
    in_force = thresholds.ThresholdsInForce()
    return {
        "profile": thresholds.profile(),
        "policies": [
            {
                "name": name,
                "topic": topic,
                "title": thresholds.title(name),
                "about": thresholds.about(name),
                "settings": [_setting(each) for each in in_force.settings(name)],
            }
            for topic, names in thresholds.by_topic().items()
            for name in names
        ],
    }


def _setting(setting: Setting) -> dict[str, Any]:
    threshold = setting.threshold
    return {
        "name": threshold.name,
        "label": threshold.label,
        "help": threshold.help,
        "unit": threshold.unit,
        "value": _plain(setting.value),
        "text": setting.in_words,
        "shipped": _plain(threshold.default),
        "origin": setting.origin,
        "hosts": {host: _plain(value) for host, value in setting.hosts.items()},
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | frozenset | set) else value
