"""What travels to a browser: one frame per tick, cut to what a viewer lacks.

A message is JSON. Figures are positional arrays, named by the orders that are sent when they
change; HTML is the page's own partials, in <hx-partial> elements that htmx morphs into place.

    n, since    this frame's number, and the one that the message builds upon (0: on nothing)
    t, age      when the readings were taken (epoch s), how old they were when sent (s)
    h, g, p     figures of hosts, GPUs, processes; o: {kind: [id, …]}, the order of each
    k           sparklines {uuid: [line, area]}
    x           digest of the rows of a page that fetches its table itself
    content     HTML of the parts that changed
    problem     why there is nothing newer
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from monitor.pages.cards import Values

# Stands in a part's HTML where its children go.
CHILDREN = "<!--children-->"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the page, by the id of its element, and the frame in which it last changed."""

    target: str
    html: str
    changed_at: int
    children: tuple[Part, ...] = ()

    @property
    def whole(self) -> str:
        return self.html.replace(CHILDREN, "".join(child.whole for child in self.children))

    def newer_than(self, since: int) -> Iterator[Part]:
        """Itself when it changed, else those of its children that did."""
        if self.changed_at > since:
            yield self
        else:
            for child in self.children:
                yield from child.newer_than(since)


@dataclass(frozen=True, slots=True)
class Column:
    """The figures of one kind of thing, in an order that rarely changes."""

    order: tuple[str, ...] = ()
    values: tuple[Values, ...] = ()
    changed_at: int = 0


@dataclass(frozen=True, slots=True)
class Sparkline:
    paths: tuple[str, str]
    changed_at: int


@dataclass(frozen=True, slots=True)
class Board:
    """All that viewers of one topic see; `head`: parts of the head of their page."""

    columns: Mapping[str, Column]
    head: Sequence[Part] = ()
    parts: Sequence[Part] = ()
    sparks: Mapping[str, Sparkline] = field(default_factory=dict)
    digest: str | None = None

    def newer_than(self, since: int) -> list[Part]:
        return [part for top in (*self.head, *self.parts) for part in top.newer_than(since)]


@dataclass(frozen=True)
class Frame:
    """The state at one tick, for each topic that has viewers."""

    n: int
    at: float | None
    boards: Mapping[str, Board]
    problem: str | None = None
    _messages: dict[tuple[str, int], str] = field(default_factory=dict, compare=False)

    def message(self, topic: str, since: int, now: float) -> str | None:
        """The text for viewers of `topic` who have frame `since`; composed once for all of them.

        None: there is nothing to say. A page without figures hears of changes alone.
        """
        board = self.boards.get(topic)
        if board is None or (since and not board.columns and not board.newer_than(since)):
            return None
        key = (topic, since)
        if since == 0 or key not in self._messages:
            # A newcomer's text carries the age of now, so that it is never handed to another.
            text = json.dumps(self._compose(board, since, now), separators=(",", ":"))
            if since == 0:
                return text
            self._messages[key] = text
        return self._messages[key]

    def _compose(self, board: Board, since: int, now: float) -> dict[str, object]:
        changed = board.newer_than(since)
        body: dict[str, object] = {"n": self.n, "since": since}
        if self.at is not None:
            body |= {"t": round(self.at, 3), "age": round(max(0.0, now - self.at), 1)}
        body |= {kind: column.values for kind, column in board.columns.items()}
        optional = {
            "o": {k: c.order for k, c in board.columns.items() if c.changed_at > since},
            "k": _sparks(board, since, changed),
            "x": board.digest,
            "problem": self.problem,
            "content": "".join(map(_swap, changed)),
        }
        return body | {name: value for name, value in optional.items() if value}


def _sparks(board: Board, since: int, changed: Sequence[Part]) -> dict[str, tuple[str, str]]:
    """Those redrawn, also since the HTML of a card that is sent along was made."""
    made = {card.target: card.changed_at for part in changed for card in part.children}
    return {
        uuid: spark.paths
        for uuid, spark in board.sparks.items()
        if spark.changed_at > made.get(f"gpu-{uuid}", since)
    }


def _swap(part: Part) -> str:
    return (
        f'<hx-partial hx-target="[id=&quot;{part.target}&quot;]" hx-swap="outerMorph">'
        f"{part.whole}</hx-partial>"
    )
