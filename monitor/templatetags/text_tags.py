"""Template tags: stored texts, with their moments in the viewer's zone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from django import template
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from monitor.facts.formats import sentence_parts
from monitor.templatetags.monitor_tags import weekday, weekday_words, with_code

register = template.Library()


@register.filter
def with_times(text: str) -> SafeString:
    """A stored text with its moments in the viewer's zone, and `this` set as code.

    No line breaks between a number and its percent sign.
    """
    unbroken = text.replace(" %", "\N{NO-BREAK SPACE}%")
    parts = sentence_parts(unbroken, timezone.now())
    return format_html_join(
        "", "{}", ((with_code(p) if isinstance(p, str) else weekday(p),) for p in parts)
    )


@register.simple_tag
def times_title(text: str, more: str = "", until: datetime | None = None) -> SafeString:
    """A title attribute with this text and, if given, `more` and the end of the state.

    times.js shows its times in the viewer's zone, with UTC behind them.
    """
    parts = list(sentence_parts(text, timezone.now()))
    if until is not None:
        parts += [f" {more} ", until, "."]
    return _title(parts)


def _title(parts: Sequence[str | datetime]) -> SafeString:
    utc = [f"{weekday_words(part, UTC)} UTC" for part in parts if isinstance(part, datetime)]
    if not utc:
        return format_html(' title="{}"', "".join(map(str, parts)))
    zone = timezone.get_current_timezone()
    words = "".join(part if isinstance(part, str) else weekday_words(part, zone) for part in parts)
    template = "".join(
        part if isinstance(part, str) else f"{{weekday:{part.isoformat()}}}" for part in parts
    )
    form = ' title="{} ({})" data-title="{}" data-utc="{}"'
    return format_html(form, words, ", ".join(utc), template, ", ".join(utc))
