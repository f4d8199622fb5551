"""Frames: the state of a page at one tick, and the messages that bring a browser up to date.

A message is JSON. Figures are positional arrays; their order is sent when it changes. HTML is the
page's own partials in <hx-partial> elements, which htmx morphs into place.

    n, since    the frame's number, and the frame that the message updates (0: complete state)
    t, age      time of the readings (epoch s), and their age when sent (s)
    h, g, p     figures of hosts, GPUs, processes; o: {kind: [id, …]}, the order of each
    x           digest of the rows of a page that fetches its table itself
    content     HTML of the changed parts
    problem     why there are no newer readings
    request_id  FEED: the element for live messages, so that htmx does not search the page for it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from msgspec import Struct

from monitor.facts.readings import Snapshot
from monitor.gpus.policy.hosts import SILENT_AFTER
from monitor.pages.cards import Values

# Placeholder for the children in a part's HTML.
CHILDREN = "<!--children-->"
FEED = 1


class Part(Struct, frozen=True):
    """A part of the page: its element's id, its HTML, and the frame in which it last changed."""

    target: str
    html: str
    changed_at: int
    children: tuple[Part, ...] = ()

    @property
    def whole(self) -> str:
        return self.html.replace(CHILDREN, "".join(child.whole for child in self.children))

    def newer_than(self, since: int) -> Iterator[Part]:
        """This part if it changed, else its changed children."""
        if self.changed_at > since:
            yield self
        else:
            for child in self.children:
                yield from child.newer_than(since)


class Column(Struct, frozen=True):
    """Figures of all hosts, GPUs or processes, in an order that rarely changes."""

    order: tuple[str, ...] = ()
    values: tuple[Values, ...] = ()
    changed_at: int = 0


class Board(Struct, frozen=True):
    """The state of one topic. `head`: parts in the head of its pages.

    at: the time of its readings, if that is not the frame's: those of silent hosts do not count.
    """

    columns: Mapping[str, Column]
    head: Sequence[Part] = ()
    parts: Sequence[Part] = ()
    digest: str | None = None
    at: float | None = None

    def newer_than(self, since: int) -> list[Part]:
        return [part for top in (*self.head, *self.parts) for part in top.newer_than(since)]


@dataclass(frozen=True)
class Frame:
    """The state at one tick, for each topic with viewers."""

    n: int
    at: float | None
    boards: Mapping[str, Board]
    problem: str | None = None
    _messages: dict[tuple[str, int], str] = field(default_factory=dict, compare=False)

    def message(self, topic: str, since: int, now: float) -> str | None:
        """The message for viewers of `topic` with frame `since`, composed once for all of them.

        None: nothing to send. Pages without figures get a message only if a part changed. Before
        the topic's first board, only a problem is sent.
        """
        board = self.boards.get(topic)
        if board is None and self.problem:
            return json.dumps({"n": 0, "since": 0, "problem": self.problem})
        if board is None or (since and not board.columns and not board.newer_than(since)):
            return None
        key = (topic, since)
        if since == 0 or key not in self._messages:
            # A complete message contains the age of the readings now, so it is never reused.
            text = json.dumps(self._compose(board, since, now), separators=(",", ":"))
            if since == 0:
                return text
            self._messages[key] = text
        return self._messages[key]

    def _compose(self, board: Board, since: int, now: float) -> dict[str, object]:
        changed = board.newer_than(since)
        body: dict[str, object] = {"n": self.n, "since": since, "request_id": FEED}
        at = self.at if board.at is None else board.at
        if at is not None:
            body |= {"t": round(at, 3), "age": round(max(0.0, now - at), 1)}
        body |= {kind: column.values for kind, column in board.columns.items()}
        optional = {
            "o": {k: c.order for k, c in board.columns.items() if c.changed_at > since},
            "x": board.digest,
            "problem": self.problem,
            "content": "".join(map(_swap, changed)),
        }
        return body | {name: value for name, value in optional.items() if value}


def _swap(part: Part) -> str:
    return (
        f'<hx-partial hx-target="[id=&quot;{part.target}&quot;]" hx-swap="outerMorph">'
        f"{part.whole}</hx-partial>"
    )


# Regions of live pages. Each app registers its own; the hub pushes the changed ones.


Context = dict[str, Any]


def whole_context(context: Context) -> object:
    """The context as its own version, for contexts of comparable values (dataclasses, tuples)."""
    return context


class Child(Struct, frozen=True):
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


class Region(Struct, frozen=True):
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


# Hosts without contact on live pages: their last readings are shown as such.


NO_HOSTS: frozenset[str] = frozenset()


def silent_hosts(snapshots: Sequence[Snapshot], now: datetime) -> frozenset[str]:
    """Hosts without contact while others have it. If none has it, the whole page is stale."""
    silent = frozenset(s.host.name for s in snapshots if now - s.at > SILENT_AFTER)
    return silent if len(silent) < len(snapshots) else NO_HOSTS


def oldest_in_contact(snapshots: Sequence[Snapshot], silent: frozenset[str]) -> float | None:
    """The time of the oldest reading (epoch s) of the other hosts. None: there is none."""
    times = (s.at.timestamp() for s in snapshots if s.host.name not in silent)
    return min(times, default=None)
