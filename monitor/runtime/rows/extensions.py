"""Access to the parts of extensions, which a site can switch off (setting `extensions`)."""

from __future__ import annotations

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


def parts(*targets: str) -> list[Any]:
    """The objects at these places whose extensions are on."""
    return [loaded for target in targets if (loaded := part(target)) is not None]
