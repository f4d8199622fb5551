"""Template tags of charts: positions and texts of labels."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import NamedTuple

from django import template
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from monitor.facts.formats import first_few
from monitor.owners.policy import LINES
from monitor.owners.rows import look_of
from monitor.templatetags.monitor_tags import owner as owner_link
from monitor.templatetags.monitor_tags import user_colour
from monitor.usage.pages.chart_panels import Chart, HeatCell, OwnerBand
from monitor.usage.rows.processes import UsageRow

register = template.Library()
DAY_S = 86_400
# An hour with fewer readings is marked.
MOSTLY_S = 3_400
# The plot inside its SVG, in pixels; app.css gives it the same height.
TOP_PX, PLOT_PX = 8.0, 120.0


@register.simple_tag
def y_place(at: float) -> str:
    """Plot units (0 top, 100 bottom) as pixels in the chart."""
    return f"{TOP_PX + at * PLOT_PX / 100:.1f}"


@register.simple_tag
def middle(x: float, width: float) -> str:
    """The middle of a segment of the plot, in percent of its width."""
    return f"{(x + width / 2) / 10:.1f}"


@register.filter
def tick(value: float) -> str:
    """The value of a tick without trailing zeros."""
    return f"{value:g}"


@register.simple_tag
def time_label(t: float, pct: float, span: float) -> SafeString:
    """A label on the time axis; app.js shows it in the viewer's time zone."""
    moment = datetime.fromtimestamp(t, UTC)
    local = moment.astimezone(timezone.get_current_timezone())
    kind = _kind(t, span)
    anchor = "end" if pct > 97 else "middle"
    return format_html(
        '<text class="t-{}" x="{}%" y="146" text-anchor="{}" data-time="{}" datetime="{}">{}'
        "<title>{}</title></text>",
        anchor,
        f"{pct:.2f}",
        anchor,
        kind,
        moment.isoformat(),
        _text(local, kind),
        _utc(moment),
    )


@register.simple_tag
def moment_words(t: float, span: float) -> SafeString:
    """A time with the precision that a range of `span` seconds needs."""
    moment = datetime.fromtimestamp(t, UTC)
    local = moment.astimezone(timezone.get_current_timezone())
    kind = "clock" if span <= DAY_S / 2 else "dayhm"
    return format_html(
        '<time datetime="{}" title="{}" data-time="{}">{}</time>',
        moment.isoformat(),
        _utc(moment),
        kind,
        _text(local, kind),
    )


@register.simple_tag
def hour(t: float) -> SafeString:
    """The hour of the day, for the head of a column."""
    moment = datetime.fromtimestamp(t, UTC)
    local = moment.astimezone(timezone.get_current_timezone())
    form = '<time datetime="{}" title="{}" data-time="hour">{}</time>'
    return format_html(form, moment.isoformat(), _utc(moment), _text(local, "hour"))


@register.filter
def moment(t: float) -> datetime:
    """Epoch seconds as a datetime."""
    return datetime.fromtimestamp(t, UTC)


@register.simple_tag
def heat_cell(cell: HeatCell, index: int, address: str) -> SafeString:
    """A cell of a heat strip: a link to that hour of the GPU."""
    owner = cell.main.subject if cell.main else None
    name = owner or "?"
    zone = timezone.get_current_timezone()
    begin, end = (_cell_time(t, zone) for t in (cell.t, cell.until))
    use = cell_use(cell)
    words = f"GPU {index}, {begin.local} to {end.local}: {use}"
    utc = f"{begin.utc}–{end.utc} UTC"
    return format_html(
        '<a class="cell h{}{}" href="{}?range=custom&amp;since={}&amp;until={}" title="{}"'
        ' aria-label="{}" data-label="{}" data-utc="{}">{}</a>',
        cell.level,
        f" {user_colour(owner)}" if cell.main else "",
        address,
        begin.parameter,
        end.parameter,
        f"{words} ({utc})",
        words,
        f"GPU {index}, {begin.template} to {end.template}: {use}",
        utc,
        format_html('<span class="cell-user">{}</span>', name) if cell.first_of_run else "",
    )


def cell_use(cell: HeatCell) -> str:
    """How busy the GPU was in a cell of a heat strip, and who used it."""
    words = ["unknown" if cell.busy_pct is None else f"{cell.busy_pct:.0f} % busy"]
    if cell.main is not None and cell.idle_held:
        words.append(f"memory held idle by {cell.main.subject or 'an unknown owner'}")
    elif cell.people:
        words.append(first_few([_person(entry) for entry in cell.people]))
    elif cell.busy_pct is not None:
        words.append("no processes")
    if cell.busy_pct is not None and cell.seen_s < MOSTLY_S and not cell.goes_on:
        words.append(f"readings cover {cell.seen_s / 36:.0f} %")
    return "; ".join(words)


@register.simple_tag
def owner_patterns(charts: Iterable[Chart]) -> SafeString:
    """The patterns of the owners without a colour in these charts."""
    owners = {each.owner for chart in charts for each in chart.owners if each.owner}
    looks = {look.css: look for name in owners if (look := look_of(name)).colour is None}
    made = format_html_join(
        "",
        '<pattern id="tl-k{}d{}" width="{}" height="{}" viewBox="0 0 8 8"'
        ' patternUnits="userSpaceOnUse"><path class="tl-ink" d="{}"/></pattern>',
        {(e.kind, e.density, e.side, e.side, LINES[e.kind]) for e in looks.values()},
    )
    form = '<svg class="chart-patterns" aria-hidden="true">{}</svg>'
    return format_html(form, made) if looks else made


@register.simple_tag
def owner_band(each: OwnerBand) -> SafeString:
    """The part of an owner in the area below a line."""
    return format_html(
        '<g class="owner-band {}" data-owner="{}"><title>{}</title>'
        '<path class="body" d="{}"/>{}</g>',
        user_colour(each.owner),
        each.label,
        each.label,
        each.band.path,
        format_html('<path class="pattern" d="{}"/>', each.band.path)
        if each.owner and look_of(each.owner).colour is None
        else "",
    )


@register.simple_tag
def owner_name(each: OwnerBand) -> SafeString:
    """The name of an owner inside the band, where it has room."""
    if each.band.label_at is None:
        return SafeString("")
    x, y = each.band.label_at
    form = '<text class="owner-name" x="{}%" y="{}" dy="4" text-anchor="middle">{}</text>'
    return format_html(form, f"{x / 10:.1f}", y_place(y), each.label)


@register.simple_tag
def owner_key(each: OwnerBand) -> SafeString:
    if each.owner:
        return owner_link(each.owner)
    return format_html('<span class="owner u-none">{}</span>', each.label)


class _CellTime(NamedTuple):
    """An hour at which cells of heat strips begin or end, as they show it.

    `parameter`: for an address. `template`: the browser replaces it by the hour in its own zone.
    """

    parameter: str
    template: str
    local: str
    utc: str


# The strips of all GPUs of a page have the same hours.
@lru_cache(maxsize=256)
def _cell_time(t: float, zone: tzinfo) -> _CellTime:
    at = moment(t)
    local = at.astimezone(zone)
    return _CellTime(
        f"{at:%Y-%m-%dT%H:%MZ}", f"{{hm:{at.isoformat()}}}", f"{local:%H:%M}", f"{at:%H:%M}"
    )


def _person(entry: UsageRow) -> str:
    used = entry.usage
    share = "unknown" if used.used_s is None else f"{used.sm_s / 36:.0f} %"
    return f"{entry.subject or 'owner unknown'} {share}"


def _utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _kind(t: float, span: float) -> str:
    """The precision: days for weeks, hours and minutes for hours, seconds for minutes."""
    if span > 6 * DAY_S:
        return "day"
    if span > 1.1 * DAY_S:
        return "dayorhm"
    return "clock" if t % 60 else "hm"


def _text(local: datetime, kind: str) -> str:
    midnight = local.hour == local.minute == 0
    forms = {
        "day": f"{local.day} {local:%b}",
        "dayhm": f"{local.day} {local:%b %H:%M}",
        "dayorhm": f"{local.day} {local:%b}" if midnight else f"{local:%H:%M}",
        "hour": f"{local:%H}",
        "hm": f"{local:%H:%M}",
        "clock": f"{local:%H:%M:%S}",
    }
    return forms[kind]
