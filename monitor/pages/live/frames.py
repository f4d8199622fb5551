"""Frames: the state of a page at one tick, and the messages that bring a browser up to date.

A message is JSON. Figures are positional arrays; their order is sent when it changes. HTML is the
page's own partials in <hx-partial> elements, which htmx morphs into place.

    n, since    the frame's number, and the frame that the message updates (0: complete state)
    t, age      time of the readings (epoch s), and their age when sent (s)
    h, g, p     figures of hosts, GPUs, processes; o: {kind: [id, …]}, the order of each
    x           digest of the rows of a page that fetches its table itself
    content     HTML of the changed parts
    problem     why there are no newer readings
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from monitor.pages.live.cards import Values

# Placeholder for the children in a part's HTML.
CHILDREN = "<!--children-->"


@dataclass(frozen=True, slots=True)
class Part:
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


@dataclass(frozen=True, slots=True)
class Column:
    """Figures of all hosts, GPUs or processes, in an order that rarely changes."""

    order: tuple[str, ...] = ()
    values: tuple[Values, ...] = ()
    changed_at: int = 0


@dataclass(frozen=True, slots=True)
class Board:
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
        body: dict[str, object] = {"n": self.n, "since": since}
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
