"""Regions of live pages. Each app registers its own; the hub pushes the changed ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Context = dict[str, Any]


def whole_context(context: Context) -> object:
    """The context as its own version, for contexts of comparable values (dataclasses, tuples)."""
    return context


@dataclass(frozen=True, slots=True)
class Child:
    """A part of a region that is pushed alone when its facts change.

    gpu_uuid: the GPU in whose row of the board it stands.
    """

    element_id: str
    facts: object
    template: str
    context: Context
    gpu_uuid: str = ""


def no_children(_context: Context) -> Sequence[Child]:
    return ()


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the dashboard, the same for all viewers. `in_head`: a part of each page's head.

    `load(now)` is called about once a second and must be cheap. The template is rendered with its
    context and `now` into the element `element_id` when `version(context)` changes, and pushed if
    it looks different then. A lower `place` comes first. Ages belong in the browser ({% ago %}).
    The template of a region in the head contains its element. A context may contain `badges` for
    cards and tables, `looks` of owners, and for the headline `waiting_jobs` and `startable_jobs`,
    those that an idle GPU could start.
    is_right: it is in the right column of a wide window. A region with `children` is loaded only
    where it is shown; its template has {{ children|safe }} in their place. With `row_layers`,
    the templates behind and below the rows, the dashboard shows each child in the row of its GPU.
    """

    name: str
    template: str
    load: Callable[[datetime], Context]
    version: Callable[[Context], object] = whole_context
    place: int = 50
    in_head: bool = False
    is_right: bool = False
    row_layers: tuple[str, ...] = ()
    children: Callable[[Context], Sequence[Child]] = no_children

    @property
    def element_id(self) -> str:
        return f"region-{self.name}"


_registered: dict[str, Region] = {}


def register(region: Region) -> None:
    _registered[region.name] = region


def regions(*, in_head: bool = False) -> list[Region]:
    chosen = (region for region in _registered.values() if region.in_head is in_head)
    return sorted(chosen, key=lambda region: region.place)
