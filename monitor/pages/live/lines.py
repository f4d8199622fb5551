"""The HTML of a GPU's line on a dashboard with many GPUs.

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
from monitor.templatetags.monitor_tags import bar, figure, owner, since_short

_BETWEEN = "\n  "


def gpu_line(card: Card, spark: tuple[str, str], *, several: bool) -> SafeString:
    """`spark`: the paths of line and area. several: there is more than one host."""
    use, memory, power, temperature = card.values[:4]
    total = in_gib(card.memory_total_bytes)
    marks = f"{' trouble' if card.trouble else ''}{' is-silent' if card.is_silent else ''}"
    place = escape(f"{card.host} {card.index}" if several else str(card.index))
    title = escape(f"{card.name}, {card.uuid}")
    cells = (
        f'<span role="cell" class="l-name"><a href="{escape(reverse("gpu", args=[card.uuid]))}"'
        f' title="{title}">{place}</a></span>',
        f'<span role="cell" class="l-state">{_state(card)}</span>',
        f'<span role="cell" class="l-bar">{bar(use, 100, 0)}'
        f'<span class="num">{figure(use, 0)} %</span></span>',
        f'<span role="cell" class="l-bar l-memory">{bar(memory, total, 1, "memory")}'
        f'<span class="num">{figure(memory, 1, digits=3)} GiB</span></span>',
        f'<span role="cell" class="num l-power">{figure(power, 2)} W</span>',
        f'<span role="cell" class="num l-temperature">{figure(temperature, 3)} °C</span>',
        f'<span role="cell" class="l-spark">{_spark(card.uuid, spark)}</span>',
        f'<span role="cell" class="l-who">{_incident(card)}{_owners(card)}</span>',
    )
    begin = f'<div class="gpu-line{marks}" role="row" id="{escape(card.element_id)}"'
    # Every other text is escaped above or comes from tags that escape.
    return SafeString(
        f'{begin} data-live="g:{escape(card.uuid)}">\n  {_BETWEEN.join(cells)}\n</div>\n'
    )


def _badge(shape: str, title: str, word: str) -> str:
    return f'<span class="badge" data-shape="{shape}" title="{escape(title)}">{escape(word)}</span>'


def _state(card: Card) -> str:
    if card.ailing and not card.is_silent:
        return _badge(card.ailing, str(card.reason), str(card.condition))
    if card.guest and not card.is_silent:
        return _badge(
            "waiting", f"{card.guest.description} uses this GPU; jobs wait", "in use by owner"
        )
    title = f"{card.word}: {card.problem}" if card.problem else card.word
    return _badge(card.shape, title, card.short_word)


def _spark(uuid: str, spark: tuple[str, str]) -> str:
    line, area = spark
    return (
        '<svg class="spark" viewBox="0 0 120 32" preserveAspectRatio="none" role="img"'
        f' aria-label="Utilisation of the last 60 minutes" data-spark="{escape(uuid)}">'
        f'<path class="base" d="M0 31.5H120"/><path class="area" d="{escape(area)}"/>'
        f'<path class="line" d="{escape(line)}"/></svg>'
    )


def _incident(card: Card) -> str:
    if not card.incident:
        return ""
    css = "chip warning" if card.incident.is_warning else "chip"
    address = escape(reverse("incident", args=[card.incident.incident]))
    return (
        f'<a class="{css}" href="{address}" title="{escape(card.incident.text)}">'
        f"{_word(card.incident)}</a> "
    )


def _word(badge: Badge) -> str:
    """For memory that is held idle, its duration, which the page keeps up to date."""
    if badge.idle_since is None:
        return escape(badge.word)
    return f"idle {since_short(Context({'now': timezone.now()}), badge.idle_since)}"


def _times(count: int) -> str:
    return f'<span class="muted times">×{count}</span>' if count > 1 else ""


def _owners(card: Card) -> str:
    if not card.first_owners:
        none = "–" if card.lost else "no processes"
        first = f'<span class="muted">{none}</span>'
    else:
        first = "".join(f"{owner(name)}{_times(count)} " for name, count in card.first_owners)
    further = card.further_owners
    if not further:
        return first
    named = ", ".join(f"{name or 'owner unknown'} ×{count}" for name, count in further)
    return f'{first}<span class="muted" title="{escape(named)}">+{len(further)}</span>'
