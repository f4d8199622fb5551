"""The dashboard's board of GPUs, a row of HTML each, and the headline above it.

The rows are made without a template: 256 of them would take a third of a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from django.template import Context
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape
from django.utils.safestring import SafeString
from msgspec import Struct

from monitor.facts.gpu_states import GpuState
from monitor.facts.incidents import NONE, Badge, Badges
from monitor.facts.readings import Snapshot
from monitor.gpus.hosts.policy import SILENT_AFTER
from monitor.pages.live.cards import Card
from monitor.pages.live.frames import CHILDREN
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
