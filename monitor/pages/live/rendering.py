"""Renders frames from snapshots. Only changed parts are rendered again."""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from django.template.loader import render_to_string
from msgspec import Struct, field
from msgspec.structs import replace

from monitor.facts.claims import GpuTask
from monitor.facts.incidents import NONE, Badges
from monitor.facts.readings import Snapshot
from monitor.gpus.policy.states import as_booked
from monitor.gpus.snapshot.rows import Bookings
from monitor.owners.accounts.policy import Look
from monitor.pages.live import board, cards
from monitor.pages.live.cards import Card, HostStrip, ProcessRow
from monitor.pages.live.frames import (
    CHILDREN,
    NO_HOSTS,
    Board,
    Child,
    Column,
    Frame,
    Part,
    Region,
    no_children,
    oldest_in_contact,
    regions,
    silent_hosts,
)

logger = logging.getLogger(__name__)

# Rows of more GPUs are lower.
MANY_GPUS = 16
DASHBOARD, PROCESSES, GPU_PREFIX = "dashboard", "processes", "gpu:"
# Topic of pages without figures: only the head is live.
HEAD = "head"
# Topic of a page that shows one region alone.
REGION_PREFIX = "region:"


def process_rows(
    snapshots: Iterable[Snapshot], gpu_uuid: str | None = None, badges: Badges = NONE
) -> list[ProcessRow]:
    return [
        cards.process_row(process, badges)
        for snapshot in snapshots
        for process in snapshot.processes
        if gpu_uuid is None or process.gpu_uuid == gpu_uuid
    ]


def digest(
    snapshots: Sequence[Snapshot],
    gpu_uuid: str | None = None,
    badges: Badges = NONE,
    silent: frozenset[str] = NO_HOSTS,
) -> str:
    """A checksum of processes and states without figures. A page with another one is outdated.

    silent: hosts without contact, which the page shows.
    """
    rows = process_rows(snapshots, gpu_uuid, badges)
    facts = sorted(
        (r.key, r.owner or "", r.program or "", r.job_ref or "", r.badge.word if r.badge else "")
        for r in rows
    )
    states = [
        (g.uuid, g.state, g.condition) for s in snapshots for g in s.gpus if g.uuid == gpu_uuid
    ]
    return f"{zlib.crc32(repr((facts, states, sorted(silent))).encode()):08x}"


def has_figures(topic: str) -> bool:
    """Whether its pages show readings each second."""
    return topic != HEAD and not topic.startswith(REGION_PREFIX)


def _is_shown(region: Region, topics: Collection[str]) -> bool:
    if region.children is no_children:
        return True
    return DASHBOARD in topics or f"{REGION_PREFIX}{region.name}" in topics


class RowLayer(Struct, frozen=True):
    """A region whose children stand in the rows of the board, by GPU. target "": there is none."""

    target: str = ""
    templates: tuple[str, ...] = ()
    version: object = None
    context: dict[str, Any] = field(default_factory=dict)
    children: dict[str, Part] = field(default_factory=dict)


# The browser itself keeps these up to date: figures, their bars, and durations until now.
_KEPT_UP = re.compile(
    r'(data-v="\d+"[^>]*>)(?:<rect width="[\d.]+%"|[^<]*)'
    r'|(data-time="(?:short|ago|in|since)">)[^<]*'
)
# Times that are shown by the minute, such as estimates, which shift by seconds all the time.
_BY_MINUTE = re.compile(
    r'"[-\dT]+:\d\d:\d\d\+00:00" title="[-\d]+ (\d\d:\d\d):\d\d UTC" data-time="minute"'
)


def _structure(html: str) -> str:
    """The HTML of a part without the texts that change alone."""
    return _BY_MINUTE.sub(r"\1", _KEPT_UP.sub(r"\1\2", html))


def _in_row(task: GpuTask) -> tuple[object, ...]:
    """The facts of a task that the row of a GPU shows."""
    ends = task.ends_at and task.ends_at.replace(second=0, microsecond=0)
    return task.job_ref, task.name, task.kind, task.percent, ends, task.agent


class Renderer:
    """Makes frames one after the other and reuses the unchanged parts of the last one.

    Readings are rendered from snapshots. Badges and regions need database queries: `load_regions`
    reads them, and frames use its last result.
    """

    def __init__(self, load: Callable[[], Bookings] = Bookings) -> None:
        self._load_bookings = load
        self._badges = NONE
        self._bookings = Bookings()
        self._waiting = self._startable = 0
        # The number of the next frame.
        self._n = 1
        self._parts: dict[str, tuple[object, Part]] = {}
        self._columns: dict[tuple[str, str], Column] = {}
        self._head: list[Part] = []
        self._regions: list[Part] = []
        self._layer = RowLayer()
        self._looks: Mapping[str, Look] = {}
        self._with_old_looks: set[str] = set()

    def whole(self, snapshots: Sequence[Snapshot], topics: Collection[str], now: datetime) -> Frame:
        """The next frame with freshly loaded regions."""
        self.load_regions(topics, now)
        return self.frame(snapshots, topics, now)

    def frame(self, snapshots: Sequence[Snapshot], topics: Collection[str], now: datetime) -> Frame:
        """The next frame, for `topics`."""
        booked = [as_booked(snapshot, self._bookings.claims) for snapshot in snapshots]
        boards = {topic: self._board(topic, booked, now) for topic in topics}
        self._columns = {k: v for k, v in self._columns.items() if k[0] in boards}
        at = min((s.at.timestamp() for s in snapshots), default=None)
        self._n += 1
        return Frame(self._n - 1, at, boards)

    def load_regions(self, topics: Collection[str], now: datetime) -> bool:
        """Load regions and badges. True: they need a frame of their own."""
        before = self._shown_elsewhere
        self._head = self._load(regions(in_head=True), now)
        if set(topics) != {HEAD}:
            self._regions = self._load((r for r in regions() if _is_shown(r, topics)), now)
            self._bookings = self._load_bookings()
        return before != self._shown_elsewhere

    def _take_looks(self, given: Mapping[str, Look]) -> None:
        """Parts are rendered anew, and those with other looks of their owners are sent."""
        if given != self._looks:
            self._looks = given
            self._with_old_looks = set(self._parts)

    @property
    def _shown_elsewhere(self) -> tuple[object, ...]:
        """Values of regions, in their own parts and in other parts of the page."""
        tasks = {uuid: tuple(map(_in_row, on)) for uuid, on in self._bookings.tasks.items()}
        return self._badges, tasks, self._waiting, self._startable, self._head, self._regions

    def _board(self, topic: str, snapshots: Sequence[Snapshot], now: datetime) -> Board:
        if topic == DASHBOARD:
            return self._dashboard(snapshots, now)
        if topic == HEAD:
            return Board(columns={}, head=self._head)
        if topic.startswith(REGION_PREFIX):
            target = f"region-{topic.removeprefix(REGION_PREFIX)}"
            parts = [part for part in self._regions if part.target == target]
            return Board(columns={}, head=self._head, parts=parts)
        uuid = topic.removeprefix(GPU_PREFIX) if topic.startswith(GPU_PREFIX) else None
        of_topic = [s for s in snapshots if uuid is None or any(g.uuid == uuid for g in s.gpus)]
        shown = [c for c in cards.cards(of_topic) if c.uuid == uuid]
        rows = process_rows(of_topic, uuid)
        silent = silent_hosts(of_topic, now)
        return Board(
            columns={
                "g": self._column(topic, "g", [(c.uuid, c.values) for c in shown]),
                "p": self._column(topic, "p", [(r.key, r.values) for r in rows]),
            },
            head=self._head,
            digest=digest(of_topic, uuid, self._badges, silent),
            at=oldest_in_contact(of_topic, silent),
        )

    def _dashboard(self, snapshots: Sequence[Snapshot], now: datetime) -> Board:
        silent = silent_hosts(snapshots, now)
        shown = cards.cards(snapshots, self._badges, self._bookings.tasks, silent)
        strips = cards.strips(snapshots, silent)
        return Board(
            # Details of a GPU fetch the figures of its processes while they are open.
            columns={
                "h": self._column(DASHBOARD, "h", [(s.name, s.values) for s in strips]),
                "g": self._column(DASHBOARD, "g", [(c.uuid, c.values) for c in shown]),
            },
            head=self._head,
            parts=[
                self._summary(snapshots, shown, now),
                self._gpus(snapshots, shown, strips, now),
                *(part for part in self._regions if part.target != self._layer.target),
            ],
            at=oldest_in_contact(snapshots, silent),
        )

    def _summary(self, snapshots: Sequence[Snapshot], shown: Sequence[Card], now: datetime) -> Part:
        queue = board.QueueCounts(self._waiting, self._startable)
        facts = board.summary(snapshots, shown, now, self._badges, queue)
        return self._part("summary", facts, "monitor/_summary.html", {"summary": facts, "now": now})

    def _gpus(
        self,
        snapshots: Sequence[Snapshot],
        shown: Sequence[Card],
        strips: Sequence[HostStrip],
        now: datetime,
    ) -> Part:
        """The board: a row for each GPU, below the line of its host. Changed cells travel alone."""
        several = len(strips) > 1
        children: list[Part] = []
        for strip in strips:
            children.append(self._host_line(strip))
            children += [self._row(c, several=several) for c in shown if c.host == strip.name]
        problems = [(s.host.name, s.problem, s.remedy) for s in snapshots if s.problem]
        context = {
            "many": len(shown) > MANY_GPUS,
            "several": several,
            "problems": problems,
            "empty": not shown,
            "waiting": not snapshots,
            "layers": self._layer.templates,
        }
        order = [child.target for child in children]
        facts = (order, context, self._layer.version)
        more = {**self._layer.context, "now": now, "children": CHILDREN}
        part = self._part("gpus", facts, "monitor/_gpus.html", {**more, **context})
        return replace(part, children=tuple(children))

    def _host_line(self, strip: HostStrip) -> Part:
        return self._part(f"line-{strip.name}", strip, "monitor/_host_line.html", {"host": strip})

    def _row(self, card: Card, *, several: bool) -> Part:
        """The frame of a row hardly changes, so cells and timeline travel without each other."""
        timeline = self._layer.children.get(card.uuid)
        place = (card.host, card.index, several, timeline is None)
        frame = partial(board.gpu_row, card, several=several)
        row = self._made(f"row-{card.uuid}", place, frame)
        cells = self._made(card.element_id, card, partial(board.gpu_cells, card))
        if timeline is None:
            return replace(row, children=(cells,))
        cell = Part(f"time-{card.uuid}", board.timeline_cell(card), row.changed_at, (timeline,))
        return replace(row, children=(cells, cell))

    def _load(self, names: Iterable[Region], now: datetime) -> list[Part]:
        return [part for region in names if (part := self._region(region, now))]

    def _region(self, region: Region, now: datetime) -> Part | None:
        """Render a region. A failing region keeps its last content and does not break the page."""
        try:
            context = region.load(now)
            version = region.version(context)
            self._take_looks(context.get("looks", self._looks))
            self._badges = context.get("badges", self._badges)
            self._waiting = context.get("waiting_jobs", self._waiting)
            self._startable = context.get("startable_jobs", self._startable)
            context = {**context, "region": region, "now": now}
            template = region.template if region.in_head else "monitor/_region.html"
            entries = region.children(context)
            children = tuple(self._child(child, now) for child in entries)
            if region.row_layers:
                in_rows = {e.gpu_uuid: c for e, c in zip(entries, children, strict=True)}
                target, layer = region.element_id, region.row_layers
                self._layer = RowLayer(target, layer, version, context, in_rows)
            whole = self._part(
                region.element_id, version, template, {**context, "children": CHILDREN}
            )
            return Part(whole.target, whole.html, whole.changed_at, children)
        except Exception:
            about = {"kind": "REGION_FAULT", "region": region.name}
            logger.exception("The region %s cannot be shown", region.name, extra=about)
            previous = self._parts.get(region.element_id)
            return previous[1] if previous else None

    def _child(self, child: Child, now: datetime) -> Part:
        return self._part(
            child.element_id, child.facts, child.template, {**child.context, "now": now}
        )

    def _part(self, target: str, facts: object, template: str, context: dict[str, Any]) -> Part:
        return self._made(target, facts, lambda: render_to_string(template, context))

    def _made(self, target: str, facts: object, make: Callable[[], str]) -> Part:
        """The part, made anew if its facts have changed, and another one if it looks different.

        The facts of a part around others name these, its HTML does not.
        """
        old_facts, shown = self._parts.get(target, (None, None))
        is_known = shown is not None and old_facts == facts
        if shown and is_known and target not in self._with_old_looks:
            return shown
        self._with_old_looks.discard(target)
        html = make()
        is_like_shown = shown is not None and _structure(shown.html) == _structure(html)
        stays = is_like_shown and (is_known or CHILDREN not in html)
        part = shown if shown and stays else Part(target, html, self._n)
        self._parts[target] = (facts, part)
        return part

    def _column(self, topic: str, kind: str, entries: Sequence[tuple[str, cards.Values]]) -> Column:
        order = tuple(key for key, _ in entries)
        previous = self._columns.get((topic, kind))
        is_same = previous is not None and previous.order == order
        changed_at = previous.changed_at if previous and is_same else self._n
        column = Column(order, tuple(values for _, values in entries), changed_at)
        self._columns[topic, kind] = column
        return column
