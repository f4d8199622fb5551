"""The HTML of a GPU's row on the dashboard's board.

Without a template: 256 of them would take a third of a second.
"""

from __future__ import annotations

from django.template import Context
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape
from django.utils.safestring import SafeString

from monitor.incidents.facts import Badge
from monitor.pages.live.cards import Card, in_gib
from monitor.pages.live.frames import CHILDREN
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
    use, memory = card.values[:2]
    total = in_gib(card.memory_total_bytes)
    cells = (
        f'<span role="cell" class="b-name"><a href="{escape(reverse("gpu", args=[card.uuid]))}"'
        f' title="{escape(f"{card.name}, {card.uuid}")}">{card.index}</a>'
        f'<span class="b-model">{escape(card.model)}</span></span>',
        f'<span role="cell" class="b-state">{_state(card)}{_below_state(card)}</span>',
        f'<span role="cell" class="b-who">{_owners(card)}{_work(card)}</span>',
        f'<span role="cell" class="b-bar"><span class="num">{figure(use, 0)} %</span>'
        f"{bar(use, 100, 0)}</span>",
        f'<span role="cell" class="b-bar b-memory"><span class="num">'
        f"{figure(memory, 1, digits=3)}{_of(total)} GiB</span>{bar(memory, total, 1, 'memory')}"
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
    owners = escape(" ".join(sorted(name for name, _ in card.owners if name)))
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
    why = card.problem or card.closed
    return _badge(card.shape, f"{card.word}: {why}" if why else card.word, card.short_word)


def _below_state(card: Card) -> str:
    """The incident on the GPU, else how long it has been in its state."""
    if card.incident:
        return _incident(card.incident)
    if card.is_silent or card.since is None:
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
    kind = ("model", task.name) if task.is_model else ("job", task.job_ref)
    address, name = escape(reverse(kind[0], args=[kind[1]])), escape(task.name or task.job_ref)
    percent = "" if task.percent is None else f" {task.percent} %"
    ends = "" if task.ends_at is None else f" · ends ~{minute(_now(), task.ends_at)}"
    more = f" · {len(further)} more" if further else ""
    return f'<span class="b-work"><a href="{address}">{name}</a>{percent}{ends}{more}</span>'
