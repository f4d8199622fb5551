"""Template filters: figures, times and colours as LOOK has them."""

from __future__ import annotations

import zlib
from datetime import datetime

from django import template
from django.template import Context
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from monitor import formats

register = template.Library()
USER_COLOURS = 7

register.filter("gib", formats.gib)
register.filter("percent", formats.percent)
register.filter("watts", formats.watts)
register.filter("celsius", formats.celsius)
register.filter("duration", formats.duration)
register.filter("sig3", formats.sig3)


@register.simple_tag(takes_context=True)
def current(context: Context, url: str) -> SafeString | str:
    """aria-current for the page that one is on."""
    here = context["request"].path
    return format_html(' aria-current="page"') if url and here == url else ""


@register.filter
def user_colour(user: str | None) -> str:
    """The colour class of a user: the same on every page."""
    return f"u{zlib.crc32(user.encode()) % USER_COLOURS}" if user else "u-none"


@register.filter
def ago(moment: datetime | None) -> SafeString | str:
    """A <time> that reads "3 min ago", with the absolute in its title; app.js keeps it fresh."""
    if moment is None:
        return "–"
    seconds = (timezone.now() - moment).total_seconds()
    return _time(moment, f"{formats.duration(max(seconds, 0))} ago", "ago")


@register.filter
def since(moment: datetime | None) -> SafeString | str:
    """A <time> that reads as a duration until now: "for 3 min"."""
    if moment is None:
        return "–"
    return _time(
        moment, formats.duration(max((timezone.now() - moment).total_seconds(), 0)), "since"
    )


@register.filter
def clock(moment: datetime | None) -> SafeString | str:
    """A <time> as a clock time; app.js turns it into the viewer's own zone."""
    if moment is None:
        return "–"
    return _time(moment, timezone.localtime(moment).strftime("%H:%M:%S"), "clock")


def _time(moment: datetime, text: str, kind: str) -> SafeString:
    local = timezone.localtime(moment)
    return format_html(
        '<time datetime="{}" title="{}" data-time="{}">{}</time>',
        moment.isoformat(timespec="seconds"),
        local.strftime("%Y-%m-%d %H:%M:%S %Z"),
        kind,
        text,
    )
