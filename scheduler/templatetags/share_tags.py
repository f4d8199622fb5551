"""Template tags of shares: bars with what is used, promised and due."""

from __future__ import annotations

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from monitor.facts.formats import part
from monitor.runtime.rows.extensions import parts
from scheduler.facts.language_models import DayUse
from scheduler.limits.quotas.pages import QuotaFigure, decided_elsewhere

register = template.Library()
register.filter(part)
register.simple_tag(decided_elsewhere)


@register.simple_tag
def quota_bar(figure: QuotaFigure) -> SafeString:
    """The used part of a limit, then the part that running jobs may take; "" without a limit."""
    if figure.pct is None:
        return SafeString("")
    return format_html(
        '<svg class="bar{}" aria-hidden="true"><rect width="{}%" height="100%"/>'
        '<rect class="promised" x="{}%" width="{}%" height="100%"/></svg>',
        " high" if figure.is_full else "",
        f"{figure.pct:.1f}",
        f"{figure.pct:.1f}",
        f"{figure.committed_pct:.1f}",
    )


@register.simple_tag
def share_bar(now: float | None, target: float | None) -> SafeString:
    """A user's part of all GPUs, with a mark at the target share."""
    if now is None:
        return SafeString("")
    mark = (
        SafeString("")
        if target is None
        else format_html(
            '<rect class="due" x="{}%" width="1.5%" height="100%"/>',
            f"{min(98.5, 100 * target):.1f}",
        )
    )
    return format_html(
        '<svg class="bar share" aria-hidden="true"><rect width="{}%" height="100%"/>{}</svg>',
        f"{100 * now:.1f}",
        mark,
    )


@register.simple_tag
def models_today(owner: str) -> DayUse | None:
    """Requests of a user to models, and their tokens, since midnight; None: models are off."""
    for used_today in parts("scheduler.language_models.prompts.rows:used_today"):
        used: DayUse = used_today(owner, timezone.now())
        return used
    return None
