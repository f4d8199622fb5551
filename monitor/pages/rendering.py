"""Renders frames from snapshots. Only changed parts are rendered again.

The rows of the board are made without a template: 256 of them would take a third of a second.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from django.template import Context
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape
from django.utils.safestring import SafeString
from msgspec import Struct, field
from msgspec.structs import replace

from monitor.facts.accounts import GpuTask
from monitor.facts.gpus import GpuState
from monitor.facts.incidents import NONE, Badge, Badges
from monitor.facts.readings import Snapshot
from monitor.gpus.policy.hosts import SILENT_AFTER
from monitor.gpus.policy.states import as_booked
from monitor.gpus.rows.snapshot import Bookings
from monitor.owners.policy import Look
from monitor.pages import cards
from monitor.pages.cards import Card, HostStrip, ProcessRow
from monitor.pages.frames import (
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
from monitor.runtime.rows.extensions import is_on
from monitor.templatetags.monitor_tags import bar, figure, minute, owner, since, since_short

_BETWEEN = "\n  "


def gpu_row(card: Card, *, several: bool) -> SafeString:
    """The frame of a row, with its cells and its timeline as children; it hardly ever changes.

    several: there is more than one host.
    """
    name = escape(f"{card.host}/{card.index}" if several else str(card.index))
    label = escape(f"{card.host} GPU {card.index}" if several else f"GPU {card.index}")
    uuid = escape(card.uuid)
    address = escape(reverse("gpu", args=[card.uuid]))
    return SafeString(
        f'<div class="b-gpu" id="row-{uuid}" role="rowgroup" data-live="g:{uuid}">'
        f'<div class="b-row" role="row" data-gpu-row="{name}">'
        f'<span role="cell" class="b-toggle"><details id="more-{uuid}" class="b-more"><summary'
        f' aria-label="Details of {label}"></summary></details></span>{CHILDREN}</div>'
        f'<div class="b-detail" role="row"><div role="cell" id="detail-{uuid}"'
        f' hx-get="{escape(reverse("gpu-card", args=[card.uuid]))}" hx-trigger="refresh"'
        f' hx-swap="innerMorph"><p class="empty"><a href="{address}">The page of {label}</a>'
        " shows its processes and its history.</p></div></div></div>\n"
    )


def timeline_cell(card: Card) -> SafeString:
    """The cell for the timeline of the GPU, its child."""
    return SafeString(
        f'<div class="b-time" role="cell" id="time-{escape(card.uuid)}">{CHILDREN}</div>'
    )


def gpu_cells(card: Card) -> SafeString:
    """The cells of a row that change with the readings."""
    use, memory = card.figures["utilization_pct"], card.figures["memory_used_bytes"]
    cells = (
        f'<span role="cell" class="b-name"><a href="{escape(reverse("gpu", args=[card.uuid]))}"'
        f' title="{escape(f"{card.name}, {card.uuid}")}">{card.index}</a>'
        f'<span class="b-model">{escape(card.model)}</span></span>',
        f'<span role="cell" class="b-state">{_state(card)}{_below_state(card)}</span>',
        f'<span role="cell" class="b-who">{_owners(card)}{_work(card)}</span>',
        f'<span role="cell" class="b-bar"><span class="num">{figure(use.value, use.slot)} %</span>'
        f"{bar(use.value, use.top, use.slot)}</span>",
        f'<span role="cell" class="b-bar b-memory"><span class="num">'
        f"{figure(memory.value, memory.slot, digits=3)}{_of(memory.top)} GiB</span>"
        f"{bar(memory.value, memory.top, memory.slot, 'memory')}"
        "</span>",
    )
    # Every other text is escaped above or comes from tags that escape.
    return SafeString(
        f'<div class="b-cells{_marks(card)}" role="presentation" id="{escape(card.element_id)}"'
        f"{_facts(card)}>\n  {_BETWEEN.join(cells)}\n</div>\n"
    )


def _marks(card: Card) -> str:
    return f"{' trouble' if card.trouble else ''}{' is-silent' if card.is_silent else ''}"


def _facts(card: Card) -> str:
    """Attributes that the filters of the board select by."""
    names = {name for name, _ in card.owners if name} | {task.owner for task in card.tasks}
    owners = escape(" ".join(sorted(names)))
    free = " data-free" if card.is_free else ""
    return f'{free}{" data-trouble" if card.needs_attention else ""} data-owners="{owners}"'


def _of(total: float | None) -> str:
    return "" if total is None else f'<span class="b-total">/{total:.3g}</span>'


def _badge(shape: str, title: str, word: str) -> str:
    return f'<span class="badge" data-shape="{shape}" title="{escape(title)}">{escape(word)}</span>'


def _state(card: Card) -> str:
    if card.ailing and not card.is_silent:
        return _badge(card.ailing, str(card.reason), str(card.condition))
    if card.guest and not card.is_silent:
        return _badge(
            "waiting", f"{card.guest.description} uses this GPU; jobs wait", "in use by owner"
        )
    why, word = card.problem or card.closed, "model loaded" if card.serves else card.word
    return _badge(card.shape, f"{word}: {why}" if why else word, card.short_word)


def _below_state(card: Card) -> str:
    """The incident on the GPU, else how long it has been in its state.

    A model changes between ready and busy with each request, which its use shows.
    """
    if card.incident:
        return _incident(card.incident)
    if card.is_silent or card.serves or card.since is None:
        return ""
    return f'<span class="b-since">{since(_now(), card.since)}</span>'


def _now() -> Context:
    return Context({"now": timezone.now()})


def _incident(badge: Badge) -> str:
    css = "chip warning" if badge.is_warning else "chip"
    address = escape(reverse("incident", args=[badge.incident]))
    return f'<a class="{css}" href="{address}" title="{escape(badge.text)}">{_word(badge)}</a>'


def _word(badge: Badge) -> str:
    """For memory that is held idle, its duration, which the page keeps up to date."""
    if badge.idle_since is None:
        return escape(badge.word)
    return f"idle {since_short(_now(), badge.idle_since)}"


def _times(count: int) -> str:
    return f'<span class="muted times">×{count}</span>' if count > 1 else ""


def _owners(card: Card) -> str:
    return f'<span class="b-owners">{_named(card)}</span>'


def _named(card: Card) -> str:
    if not card.first_owners and card.tasks:
        # Its processes have not been read: it starts, or its GPU is lost.
        return " ".join(owner(name) for name in dict.fromkeys(task.owner for task in card.tasks))
    if not card.first_owners:
        none = "processes unknown" if card.lost else "no processes"
        return f'<span class="muted">{none}</span>'
    first = "".join(f"{owner(name)}{_times(count)} " for name, count in card.first_owners)
    further = card.further_owners
    if not further:
        return first
    named = ", ".join(f"{name or 'owner unknown'} ×{count}" for name, count in further)
    return f'{first}<span class="muted" title="{escape(named)}">+{len(further)}</span>'


def _work(card: Card) -> str:
    """The model or job with its progress and end, else the largest program."""
    if not card.tasks:
        program = card.rows[0].program if card.rows else None
        return f'<span class="b-work muted">{escape(program or "")}</span>'
    task, *further = card.tasks
    # The page of a model is missing while its extension is off.
    has_page = task.is_model and is_on("models")
    kind = ("model", task.name) if has_page else ("job", task.job_ref)
    address, name = escape(reverse(kind[0], args=[kind[1]])), escape(task.name or task.job_ref)
    percent = "" if task.percent is None else f" {task.percent} %"
    ends = "" if task.ends_at is None else f" · ends ~{minute(_now(), task.ends_at)}"
    more = f" · {len(further)} more" if further else ""
    return f'<span class="b-work"><a href="{address}">{name}</a>{percent}{ends}{more}</span>'


# The dashboard's headline: the worst of GPU health, incidents, and idle GPUs while jobs wait.

# Shorter idle times occur between two jobs.
IDLE_NOTICED_S = 60
WORST_FIRST = ("failing", "warning")


class Summary(Struct, frozen=True):
    """The headline and the counts beside it. free: idle GPUs that take new work.

    silent: GPUs of hosts without contact. Nothing else counts them, nor users there.
    """

    shape: str
    verdict: str
    gpus: int
    busy: int
    free: int
    people: int
    waiting: int
    silent: int = 0


class QueueCounts(Struct, frozen=True):
    """startable: waiting jobs that an idle GPU could start."""

    waiting: int = 0
    startable: int = 0


NO_QUEUE = QueueCounts()


def summary(
    snapshots: Sequence[Snapshot],
    gpu_cards: Sequence[Card],
    now: datetime,
    badges: Badges = NONE,
    queue: QueueCounts = NO_QUEUE,
) -> Summary:
    """`gpu_cards`: the cards of `snapshots`."""
    shape, verdict = _verdict(snapshots, gpu_cards, now, badges, queue.startable)
    unheard = {card.host for card in gpu_cards if card.is_silent}
    heard = [s for s in snapshots if s.host.name not in unheard]
    owners = {p.job_owner or p.user for s in heard for p in s.processes} - {None}
    return Summary(
        shape=shape,
        verdict=verdict,
        gpus=sum(not card.is_silent for card in gpu_cards),
        busy=sum(card.shape == "busy" or card.works_on for card in gpu_cards),
        free=sum(card.is_free for card in gpu_cards),
        people=len(owners),
        waiting=queue.waiting,
        silent=sum(card.is_silent for card in gpu_cards),
    )


def _verdict(
    snapshots: Sequence[Snapshot],
    gpu_cards: Sequence[Card],
    now: datetime,
    badges: Badges,
    startable: int,
) -> tuple[str, str]:
    if not snapshots:
        return "waiting", "Waiting for the first reading"
    troubles = [
        *_silence(snapshots, now),
        *_health(snapshots, gpu_cards),
        *_incidents(badges, gpu_cards),
        *_idle(gpu_cards, now, startable),
    ]
    if troubles:
        return min(troubles, key=lambda trouble: WORST_FIRST.index(trouble[0]))
    if not gpu_cards:
        return "idle", "No GPUs found on this machine"
    return "ok", "The GPU is healthy" if len(
        gpu_cards
    ) == 1 else f"{len(gpu_cards)} of {len(gpu_cards)} GPUs healthy"


def _silence(snapshots: Sequence[Snapshot], now: datetime) -> Iterator[tuple[str, str]]:
    """Hosts without contact. Of a single host, the page itself says that it gets no readings."""
    silent = [s.host.name for s in snapshots if now - s.at > SILENT_AFTER]
    if silent and len(snapshots) > 1:
        named = silent[0] if len(silent) == 1 else f"{len(silent)} hosts"
        yield "failing", f"No contact with {named}"


def _health(snapshots: Sequence[Snapshot], gpu_cards: Sequence[Card]) -> Iterator[tuple[str, str]]:
    for state, word in ((GpuState.LOST, "lost"), (GpuState.FAILING, "failing")):
        if named := [card for card in gpu_cards if card.state is state]:
            yield "failing", f"{_gpu_words(named)} {word}"
    if any(snapshot.problem for snapshot in snapshots):
        yield "warning", "The GPUs can't be read"
    ailing = [card for card in gpu_cards if card.ailing]
    if len(ailing) == 1:
        yield ailing[0].ailing or "warning", f"GPU {ailing[0].index} is {ailing[0].condition}"
    elif ailing:
        yield "warning", f"{len(ailing)} GPUs accept no new jobs"


def _incidents(badges: Badges, gpu_cards: Sequence[Card]) -> Iterator[tuple[str, str]]:
    worst = badges.worst
    if worst is None:
        return
    shape = "failing" if worst.severity == "error" else "warning"
    yield shape, f"{_title_with_gpu(worst, gpu_cards)}: others wait"


def _title_with_gpu(badge: Badge, gpu_cards: Sequence[Card]) -> str:
    index = next((card.index for card in gpu_cards if card.uuid == badge.gpu_uuid), None)
    return badge.title if index is None else f"{badge.title} on GPU {index}"


def _idle(gpu_cards: Sequence[Card], now: datetime, startable: int) -> Iterator[tuple[str, str]]:
    idle = [
        card
        for card in gpu_cards
        if card.is_free and card.since and (now - card.since).total_seconds() >= IDLE_NOTICED_S
    ]
    if startable and idle:
        jobs = "1 job waits" if startable == 1 else f"{startable} jobs wait"
        yield "warning", f"{_gpu_words(idle)} idle while {jobs}"


def _gpu_words(named: Sequence[Card]) -> str:
    return f"GPU {named[0].index} is" if len(named) == 1 else f"{len(named)} GPUs are"


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
        queue = QueueCounts(self._waiting, self._startable)
        facts = summary(snapshots, shown, now, self._badges, queue)
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
        frame = partial(gpu_row, card, several=several)
        row = self._made(f"row-{card.uuid}", place, frame)
        cells = self._made(card.element_id, card, partial(gpu_cells, card))
        if timeline is None:
            return replace(row, children=(cells,))
        cell = Part(f"time-{card.uuid}", timeline_cell(card), row.changed_at, (timeline,))
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
