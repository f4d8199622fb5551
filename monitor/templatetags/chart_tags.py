"""Template tags of charts: where a label stands, and how it reads."""

from __future__ import annotations

from datetime import UTC, datetime

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

register = template.Library()
# The plot inside its SVG, in pixels; app.css gives it the same height.
TOP_PX, PLOT_PX = 8.0, 120.0


@register.simple_tag
def y_place(at: float) -> str:
    """Plot units (0 top, 100 bottom) as pixels in the chart."""
    return f"{TOP_PX + at * PLOT_PX / 100:.1f}"


@register.simple_tag
def middle(x: float, width: float) -> str:
    """The middle of a stretch of the plot, in percent of its width."""
    return f"{(x + width / 2) / 10:.1f}"


@register.filter
def tick(value: float) -> str:
    """A tick's figure without needless zeros."""
    return f"{value:g}"


@register.simple_tag
def time_label(t: float, pct: float) -> SafeString:
    """A label on the time axis; app.js puts it into the viewer's zone."""
    moment = datetime.fromtimestamp(t, UTC)
    kind, form = ("clock", "%H:%M:%S") if t % 60 else ("hm", "%H:%M")
    anchor = "start" if pct < 3 else "end" if pct > 97 else "middle"
    return format_html(
        '<text x="{}%" y="146" text-anchor="{}" data-time="{}" datetime="{}">{}</text>',
        f"{pct:.2f}",
        anchor,
        kind,
        moment.isoformat(),
        moment.astimezone(timezone.get_current_timezone()).strftime(form),
    )


@register.filter
def moment(t: float) -> datetime:
    """Epoch seconds as a datetime."""
    return datetime.fromtimestamp(t, UTC)
