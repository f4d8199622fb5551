"""Regions of live pages: each app registers its own, the hub pushes those that changed."""

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
    """A part of the dashboard that all viewers see alike; `in_head`: of each page's head instead.

    `load(now)` reads what it shows, cheaply: it is called about once a second. It is rendered
    with that context and `now`, into an element whose id is `element_id`, and pushed when
    `version(context)` changed; lower `place` comes first. Times that only grow older belong in
    the browser ({% ago %}). One in the head brings its element itself. A context may bring
    `badges` for cards and tables.
    """

    name: str
    template: str
    load: Callable[[datetime], Context]
    version: Callable[[Context], object] = whole
    place: int = 50
    in_head: bool = False

    @property
    def element_id(self) -> str:
        return f"region-{self.name}"


_registered: dict[str, Region] = {}


def register(region: Region) -> None:
    """Show `region` where it belongs."""
    _registered[region.name] = region


def regions(*, in_head: bool = False) -> list[Region]:
    found = (region for region in _registered.values() if region.in_head is in_head)
    return sorted(found, key=lambda region: region.place)
