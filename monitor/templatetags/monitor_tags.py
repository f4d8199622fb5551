"""Template tags: figures, bars, times and colours as LOOK has them.

Times need `now` in the context: pages have it from the site's context, live parts from the hub.
"""

from __future__ import annotations

import zlib
from datetime import datetime

from django import template
from django.template import Context
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from monitor import formats
from monitor.pages import cards
from monitor.usage import Usage

register = template.Library()
USER_COLOURS, USER_SHAPES = 7, 3
WHY_UNKNOWN = "Unknown: the probe can't tell"
WHY_NO_OWNER = (
    "Owner unknown. Its pid is not among this machine's processes: it may run in a container or"
    " have ended."
)
WHY_NEVER_MEASURED = "Unknown: its use was never measured"
USE_SOURCES = {
    "accounting": "the driver's accounting",
    "processes_info": "the driver's list of processes with their use",
    "process_utilization": "the driver's samples of each process",
    "device": "the whole GPU's use, as it was alone there",
    "unknown": "nothing: the driver does not tell",
}

register.filter("gib", formats.gib)
register.filter("percent", formats.percent)
register.filter("watts", formats.watts)
register.filter("celsius", formats.celsius)
register.filter("duration", formats.duration)
register.filter("sig3", formats.sig3)
register.filter("in_gib", cards.in_gib)


@register.simple_tag(takes_context=True)
def current(context: Context, url: str) -> SafeString:
    """aria-current for the page that one is on."""
    here = context["request"].path
    return SafeString(' aria-current="page"') if url and here == url else SafeString("")


@register.simple_tag(takes_context=True)
def sort_head(context: Context, key: str, words: str, sort: str, css: str = "") -> SafeString:
    """A column's head as a link that sorts by it: figures from the top, again to turn it round."""
    falls_first = css == "num"
    here = sort.removeprefix("-") == key
    falls = sort.startswith("-")
    query = context["request"].GET.copy()
    query["sort"] = ("" if falls else "-") + key if here else ("-" if falls_first else "") + key
    order = "descending" if falls else "ascending"
    return format_html(
        '<th class="{}" scope="col"{}><a class="sort" href="?{}">{}</a></th>',
        css,
        format_html(' aria-sort="{}"', order) if here else "",
        query.urlencode(),
        words,
    )


@register.filter
def user_colour(user: str | None) -> str:
    """The classes of a user's colour and shape: the same on every page."""
    if not user:
        return "u-none"
    number = zlib.crc32(user.encode())
    return f"u{number % USER_COLOURS} s{(number >> 20) % USER_SHAPES}"


@register.filter
def with_code(text: str) -> SafeString:
    """A text in which `this` is set as code."""
    pieces = [(i % 2, piece) for i, piece in enumerate(text.split("`"))]
    return format_html_join(
        "", "{}", ((format_html("<code>{}</code>", p) if code else p,) for code, p in pieces)
    )


@register.simple_tag
def owner(user: str | None) -> SafeString:
    """A user with their colour, as a link to what they used; nobody knows whose it is without."""
    if user:
        address = reverse("person", args=[user])
        return format_html('<a class="owner {}" href="{}">{}</a>', user_colour(user), address, user)
    return format_html('<span class="owner u-none" title="{}">unknown</span>', WHY_NO_OWNER)


@register.simple_tag
def gpu_hours(usage: Usage) -> SafeString:
    """GPU time used, in GPU-hours; small amounts keep three digits."""
    if usage.used_s is None:
        return format_html('<span class="unknown" title="{}">–</span>', WHY_NEVER_MEASURED)
    hours = usage.sm_s / 3600
    return format_html("{}", "<0.001" if 0 < hours < 0.001 else formats.sig3(hours))


@register.simple_tag
def energy(joules: float | None) -> SafeString:
    """Energy as Wh or kWh."""
    if joules is None:
        return format_html('<span class="unknown" title="{}">–</span>', WHY_UNKNOWN)
    hours = joules / 3600
    return format_html(
        "{} {}",
        *((formats.sig3(hours / 1000), "kWh") if hours >= 1000 else (formats.sig3(hours), "Wh")),
    )


@register.filter
def use_source(source: str) -> str:
    """Where the figures of a process's use come from, in words."""
    return USE_SOURCES.get(source, source)


@register.simple_tag
def figure(value: float | None, slot: int | str, digits: int = 0) -> SafeString:
    """A figure that the live feed writes anew: value number `slot` of the [data-live] around it.

    digits 3: three significant digits; 0: a whole number.
    """
    kind = SafeString(' data-d="3"') if digits else ""
    if value is None:
        return format_html(
            '<b class="unknown" data-v="{}"{} title="{}">–</b>', slot, kind, WHY_UNKNOWN
        )
    text = formats.sig3(value) if digits else f"{value:.0f}"
    return format_html('<b data-v="{}"{}>{}</b>', slot, kind, text)


@register.simple_tag
def bar(value: float | None, top: float | None, slot: int | str, kind: str = "") -> SafeString:
    """A bar from 0 to `top`, hatched when unknown; the figure beside it says the same in words."""
    known = value is not None and bool(top)
    width = min(100.0, 100 * value / top) if known and value is not None and top else 0.0
    return format_html(
        '<svg class="bar {}{}" data-v="{}" data-max="{}" viewBox="0 0 100 1"'
        ' preserveAspectRatio="none" aria-hidden="true"><rect width="{}" height="1"/></svg>',
        kind,
        "" if known else " no-value",
        slot,
        f"{top:.6g}" if top else "",
        f"{width:.1f}",
    )


@register.simple_tag(takes_context=True)
def ago(context: Context, moment: datetime | None) -> SafeString:
    """A <time> that reads "3 min ago"; app.js keeps it fresh."""
    return _time(context, moment, "ago", " ago")


@register.simple_tag(takes_context=True)
def since(context: Context, moment: datetime | None) -> SafeString:
    """A <time> that reads as the duration until now: "3 min"; app.js keeps it fresh."""
    return _time(context, moment, "since", "")


@register.simple_tag(takes_context=True)
def clock(context: Context, moment: datetime | None) -> SafeString:
    """A <time> as a clock time, with the day unless that is today; app.js turns it into the
    viewer's own zone."""
    if moment is None:
        return SafeString("–")
    here, today = _local(moment), _local(context["now"])
    if here.date() == today.date():
        text = here.strftime("%H:%M:%S")
    else:
        text = here.strftime("%-d %b %H:%M" if here.year == today.year else "%-d %b %Y %H:%M")
    return _element(moment, "clock", text)


def _time(context: Context, moment: datetime | None, kind: str, suffix: str) -> SafeString:
    if moment is None:
        return SafeString("–")
    seconds = max((context["now"] - moment).total_seconds(), 0)
    return _element(moment, kind, formats.duration(seconds) + suffix)


def _element(moment: datetime, kind: str, text: str) -> SafeString:
    return format_html(
        '<time datetime="{}" title="{}" data-time="{}">{}</time>',
        moment.isoformat(timespec="seconds"),
        _local(moment).strftime("%Y-%m-%d %H:%M:%S %Z"),
        kind,
        text,
    )


def _local(moment: datetime) -> datetime:
    return moment.astimezone(timezone.get_current_timezone())
