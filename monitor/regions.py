"""Regions of the live dashboard: each app registers its own, the hub pushes those that changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Context = dict[str, Any]


def whole(context: Context) -> object:
    """The version of a context that holds plain values (dataclasses, tuples): the context."""
    return context


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the dashboard that all viewers see alike.

    `load(now)` reads what it shows, cheaply: it is called about once a second. It is rendered
    with that context and `now`, into an element whose id is `element_id`, and pushed when
    `version(context)` changed; lower `place` comes first. Times that only grow older belong in
    the browser ({% ago %}).
    """

    name: str
    template: str
    load: Callable[[datetime], Context]
    version: Callable[[Context], object] = whole
    place: int = 50

    @property
    def element_id(self) -> str:
        return f"region-{self.name}"


_registered: dict[str, Region] = {}


def register(region: Region) -> None:
    """Show `region` on the dashboard."""
    _registered[region.name] = region


def regions() -> list[Region]:
    return sorted(_registered.values(), key=lambda region: region.place)
