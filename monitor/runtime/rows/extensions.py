"""Access to the parts of extensions, which a site can switch off (setting `extensions`)."""

from __future__ import annotations

from datetime import datetime
from importlib import import_module
from typing import Any

from django.conf import settings


def is_on(name: str) -> bool:
    return name in settings.CONFIG.extensions


def part(target: str) -> Any:
    """The object at `module:name`; None, and nothing is loaded, while its extension is off."""
    module, _, name = target.partition(":")
    off = settings.ROOMS_OFF
    if any(module == room or module.startswith(f"{room}.") for room in off):
        return None
    return getattr(import_module(module), name)


class Off:
    """The step of an extension that is off."""

    def __init__(self, *context: object) -> None:
        pass

    def step(self, now: datetime) -> int:
        return 0

    def close(self) -> None:
        pass


def step_of(target: str) -> Any:
    """The class of a step; `Off` while its extension is off."""
    return part(target) or Off


def parts(*targets: str) -> list[Any]:
    """The objects at these places whose extensions are on."""
    return [loaded for target in targets if (loaded := part(target)) is not None]
