"""From snapshots to frames: what changed is rendered anew, everything else is kept."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

from django.template.loader import render_to_string

from monitor.pages import cards, host_strips
from monitor.pages.badges import NONE, Badges
from monitor.pages.cards import MOST_CARDS, Card, ProcessRow
from monitor.pages.frames import CHILDREN, Board, Column, Frame, Part, Sparkline
from monitor.pages.history import Spark
from monitor.pages.host_strips import HostStrip
from monitor.pages.regions import Region, regions
from monitor.readings import Snapshot

logger = logging.getLogger(__name__)

DASHBOARD, PROCESSES, GPU_PREFIX = "dashboard", "processes", "gpu:"
# Of pages that have no figures: the head alone.
HEAD = "head"
SparkSource = Callable[[Iterable[str], datetime], dict[str, Spark]]


def rows_of(
    snapshots: Iterable[Snapshot], gpu_uuid: str | None = None, badges: Badges = NONE
) -> list[ProcessRow]:
    return [
        cards.process_row(process, badges)
        for snapshot in snapshots
        for process in snapshot.processes
        if gpu_uuid is None or process.gpu_uuid == gpu_uuid
    ]


def digest(
    snapshots: Sequence[Snapshot], gpu_uuid: str | None = None, badges: Badges = NONE
) -> str:
    """Who is there and in which state, without figures: if a page's differs, it is out of date."""
    rows = rows_of(snapshots, gpu_uuid, badges)
    facts = sorted(
        (r.key, r.owner or "", r.program or "", r.job_ref or "", r.badge.word if r.badge else "")
        for r in rows
    )
    states = [
        (g.uuid, g.state, g.condition) for s in snapshots for g in s.gpus if g.uuid == gpu_uuid
    ]
    return f"{zlib.crc32(repr((facts, states)).encode()):08x}"


class Renderer:
    """Makes frames, one after the other; remembers what it made last.

    Readings are rendered from the snapshots alone. What is around them (badges, regions,
    sparklines) takes questions to the database: it is as `look_around` found it last.
    """

    def __init__(self, sparks: SparkSource) -> None:
        self._sparks = sparks
        self._badges = NONE
        # The number of the frame that is made next.
        self._n = 1
        self._parts: dict[str, tuple[object, Part]] = {}
        self._columns: dict[tuple[str, str], Column] = {}
        self._drawn: dict[str, Sparkline] = {}
        self._head: list[Part] = []
        self._regions: list[Part] = []

    def whole(self, snapshots: Sequence[Snapshot], topics: Collection[str], now: datetime) -> Frame:
        """The next frame, in which nothing is from before."""
        self.look_around(snapshots, topics, now)
        return self.frame(snapshots, topics, now)

    def frame(self, snapshots: Sequence[Snapshot], topics: Collection[str], now: datetime) -> Frame:
        """The next frame, for `topics`."""
        boards = {topic: self._board(topic, snapshots, now) for topic in topics}
        self._columns = {k: v for k, v in self._columns.items() if k[0] in boards}
        at = min((s.at.timestamp() for s in snapshots), default=None)
        self._n += 1
        return Frame(self._n - 1, at, boards)

    def look_around(
        self, snapshots: Sequence[Snapshot], topics: Collection[str], now: datetime
    ) -> bool:
        """Read what is around the readings; whether that is worth a frame of its own.

        Sparklines are not: they travel with the next reading.
        """
        before = self._badges, self._head, self._regions
        self._head = self._looked_at(regions(in_head=True), now)
        if set(topics) != {HEAD}:
            self._regions = self._looked_at(regions(), now)
            self._draw([gpu.uuid for s in snapshots for gpu in s.gpus], now)
        return before != (self._badges, self._head, self._regions)

    def _board(self, topic: str, snapshots: Sequence[Snapshot], now: datetime) -> Board:
        if topic == DASHBOARD:
            return self._dashboard(snapshots, now)
        if topic == HEAD:
            return Board(columns={}, head=self._head)
        uuid = topic.removeprefix(GPU_PREFIX) if topic.startswith(GPU_PREFIX) else None
        shown = [c for c in cards.cards(snapshots) if c.uuid == uuid]
        rows = rows_of(snapshots, uuid)
        return Board(
            columns={
                "g": self._column(topic, "g", [(c.uuid, c.values) for c in shown]),
                "p": self._column(topic, "p", [(r.key, r.values) for r in rows]),
            },
            head=self._head,
            digest=digest(snapshots, uuid, self._badges),
        )

    def _dashboard(self, snapshots: Sequence[Snapshot], now: datetime) -> Board:
        shown = cards.cards(snapshots, self._badges)
        strips = host_strips.strips(snapshots)
        rows = [row for card in shown for row in card.rows] if len(shown) <= MOST_CARDS else []
        return Board(
            columns={
                "h": self._column(DASHBOARD, "h", [(s.name, s.values) for s in strips]),
                "g": self._column(DASHBOARD, "g", [(c.uuid, c.values) for c in shown]),
                "p": self._column(DASHBOARD, "p", [(r.key, r.values) for r in rows]),
            },
            head=self._head,
            parts=[
                self._summary(snapshots, shown, now),
                self._hosts(strips, now),
                self._gpus(snapshots, shown, now),
                *self._regions,
            ],
            sparks=self._drawn,
        )

    def _summary(self, snapshots: Sequence[Snapshot], shown: Sequence[Card], now: datetime) -> Part:
        facts = cards.summary(snapshots, shown, self._badges)
        return self._part("summary", facts, "monitor/_summary.html", {"summary": facts, "now": now})

    def _hosts(self, strips: Sequence[HostStrip], now: datetime) -> Part:
        context = {"strips": strips, "several": len(strips) > 1, "now": now}
        return self._part("hosts", tuple(strips), "monitor/_hosts.html", context)

    def _gpus(self, snapshots: Sequence[Snapshot], shown: Sequence[Card], now: datetime) -> Part:
        """All cards; a card that changed travels alone, unless cards came, went or moved."""
        lines, several = len(shown) > MOST_CARDS, len(snapshots) > 1
        template = "monitor/_line.html" if lines else "monitor/_card.html"
        children = tuple(
            self._part(
                card.element_id,
                (card, lines),
                template,
                {"card": card, "spark": self._paths(card), "several": several, "now": now},
            )
            for card in shown
        )
        problems = [(s.host.name, s.problem, s.remedy) for s in snapshots if s.problem]
        order = [c.uuid for c in shown]
        context = {
            "lines": lines,
            "several": several,
            "problems": problems,
            "empty": not shown,
            "waiting": not snapshots,
            "children": CHILDREN,
        }
        part = self._part("gpus", (order, context), "monitor/_gpus.html", context)
        return Part(part.target, part.html, part.changed_at, children)

    def _looked_at(self, wanted: Iterable[Region], now: datetime) -> list[Part]:
        return [part for region in wanted if (part := self._region(region, now))]

    def _region(self, region: Region, now: datetime) -> Part | None:
        """A region that fails keeps what it showed: it must not take the page with it."""
        try:
            context = region.load(now)
            version = region.version(context)
            self._badges = context.get("badges", self._badges)
            context = {**context, "region": region, "now": now}
            template = region.template if region.in_head else "monitor/_region.html"
            return self._part(region.element_id, version, template, context)
        except Exception:
            about = {"kind": "REGION_FAULT", "region": region.name}
            logger.exception("The region %s can't be shown", region.name, extra=about)
            kept = self._parts.get(region.element_id)
            return kept[1] if kept else None

    def _draw(self, uuids: Sequence[str], now: datetime) -> None:
        old, self._drawn = self._drawn, {}
        for uuid, spark in self._sparks(uuids, now).items():
            paths = (spark.line, spark.area)
            kept = old.get(uuid)
            same = kept is not None and kept.paths == paths
            self._drawn[uuid] = kept if kept and same else Sparkline(paths, self._n)

    def _paths(self, card: Card) -> tuple[str, str]:
        drawn = self._drawn.get(card.uuid)
        return drawn.paths if drawn else ("", "")

    def _part(self, target: str, facts: object, template: str, context: dict[str, Any]) -> Part:
        kept = self._parts.get(target)
        if kept and kept[0] == facts:
            return kept[1]
        part = Part(target, render_to_string(template, context), self._n)
        self._parts[target] = (facts, part)
        return part

    def _column(self, topic: str, kind: str, entries: Sequence[tuple[str, cards.Values]]) -> Column:
        order = tuple(key for key, _ in entries)
        kept = self._columns.get((topic, kind))
        changed_at = kept.changed_at if kept and kept.order == order else self._n
        column = Column(order, tuple(values for _, values in entries), changed_at)
        self._columns[topic, kind] = column
        return column
