"""SVG pictures of a report. Figures go in, one self-contained SVG text comes out.

Colours are attributes, so that a picture also works in a file; the style sheet of the page
replaces them by class for the dark theme. Every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from itertools import pairwise
from zoneinfo import ZoneInfo

from msgspec import Struct

from monitor.owners.policy import LINES, Look
from monitor.usage.charts import nice_ceiling
from reports.figures.facts import Occupancy, Report, UserFigures
from reports.figures.policy.ledger import IDLE_PCT
from reports.render.wording import WEEKDAYS, in_zone, joined, name, of_all_jobs, of_all_users

WIDTH, NARROW = 760, 340
# For files: the colours of looks in their order (Okabe-Ito), and the tones of those with patterns.
COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#d6c51b", "#d55e00", "#cc79a7")
TONES, PATTERN_INK = ("#d3d8df", "#b3bbc6", "#929daa"), "#2b333d"
RAMP = ("#eceef2", "#d3e4f7", "#a8caee", "#74a9df", "#3a7fc6", "#12528f")
INK, MUTED, LINE, BAR, WARN = "#171c23", "#566170", "#d7dce3", "#3d7fc9", "#9a5b00"
FONT = "system-ui, Liberation Sans, DejaVu Sans, sans-serif"
MOST_USERS, LEFT = 12, 130
# The width of a wide letter.
LETTER = 8.0
# Epoch seconds -> x.
Place = Callable[[float], float]
# By user.
Looks = Mapping[str, Look]


class Picture(Struct, frozen=True):
    """A chart. `table`: the key of the table with its figures."""

    key: str
    title: str
    table: str
    svg: str
    caption: str = ""


def pictures(report: Report, looks: Looks) -> list[Picture]:
    """The charts that have figures. looks: of all users of the report."""
    made = (
        shares(report, looks),
        scatter(report, looks),
        heat(report),
        timeline(report, looks),
        waits(report),
    )
    return [picture for picture in made if picture is not None]


def narrow_shares(report: Report, looks: Looks) -> str:
    """The picture `shares` for a phone, with letters of the same size; "" without figures."""
    picture = shares(report, looks, NARROW)
    # It stands beside the wide one, whose patterns a phone hides.
    return picture.svg.replace("own-", "narrow-") if picture else ""


def shares(report: Report, looks: Looks, width: float = WIDTH) -> Picture | None:
    """Bars of the share of all GPU time, with a mark at the entitlement."""
    known = [row for row in report.users if row.share_pct is not None]
    rows, further = known[:MOST_USERS], max(0, len(known) - MOST_USERS)
    if not rows:
        return None
    more = f" {further} more user{'s' if further > 1 else ''} in the table." if further else ""
    marks = round_ticks(max(1.0, *(max(r.share_pct or 0, r.entitled_pct or 0) for r in rows)))
    top = marks[-1]
    left, height = min(LEFT, 0.36 * width), 26
    wide, letters = width - left - 60, int(left / 7.2)

    def body() -> Iterator[str]:
        yield _line_patterns((row.user for row in rows), looks)
        yield from _x_axis(marks, left, wide, len(rows) * height, "%")
        for index, row in enumerate(rows):
            y, share = index * height + 4, row.share_pct or 0.0
            yield _text(
                left - 8, y + 13, _label(row.user, letters), anchor="end", css="ink", fill=INK
            )
            yield _owned(row.user, looks, left, y, wide * share / top, 16)
            beside_bar = left + wide * share / top + 4
            if row.entitled_pct is not None:
                x = left + wide * row.entitled_pct / top
                # The figure must not be struck through by the mark.
                beside_bar = x + 6 if beside_bar - 4 <= x <= beside_bar + 5 * LETTER else beside_bar
                place = f"M{x:.1f} {y - 3}v22"
                yield f'<path class="mark" d="{place}" stroke="{INK}" stroke-width="2"/>'
            yield _text(beside_bar, y + 13, f"{share:.1f} %")

    return Picture(
        "shares",
        "Share of the GPU time against entitlement",
        "users",
        _svg(len(rows) * height + 28, "Share against entitlement by user", body(), width),
        f"Bars: GPU-hours held as a part of the measured capacity. Marks: entitlement.{more}",
    )


def scatter(report: Report, looks: Looks) -> Picture | None:
    """Users by GPU-hours held and efficiency."""
    rows = [row for row in report.users if row.efficiency is not None and row.held > 0]
    if not rows:
        return None
    ticks = round_ticks(max(row.held for row in rows))
    top = ticks[-1]
    left, wide, high = 56, WIDTH - 56 - 90, 200

    def body() -> Iterator[str]:
        for pct in (0, 25, 50, 75, 100):
            y = 10 + high - high * pct / 100
            yield f'<path class="axis" d="M{left} {y:.1f}h{wide}" stroke="{LINE}"/>'
            yield _text(left - 6, y + 4, f"{pct} %", anchor="end")
        for value in ticks:
            yield _text(left + wide * value / top, high + 28, f"{value:g}", anchor="middle")
        yield _text(left + wide, high + 44, "GPU-hours held", anchor="end")
        labels: list[tuple[float, float]] = []
        for row in rows:
            x, y = left + wide * row.held / top, 10 + high * (1 - (row.efficiency or 0.0))
            yield (
                f'<circle class="{owner_css(row.user, looks)}" cx="{x:.1f}" cy="{y:.1f}" r="6"'
                f' fill="{colour(row.user, looks)}" stroke="{INK}" stroke-opacity=".4"/>'
            )
            if all(abs(x - a) > 60 or abs(y - b) > 12 for a, b in labels):
                labels.append((x, y))
                yield beside(x, y, _label(row.user, 14))

    return Picture(
        "scatter",
        "GPU-hours and efficiency",
        "users",
        _svg(high + 52, "GPU-hours held and efficiency by user", body()),
        "Low and far to the right: many hours held, few of them used.",
    )


def round_ticks(most: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, from 0 to the first one above `most`."""
    size = 10.0 ** math.floor(math.log10(most / 5))
    step = next(size * factor for factor in (1, 2, 5, 10) if 5 * size * factor >= most)
    return [step * number for number in range(math.ceil(most / step) + 1)]


def beside(x: float, y: float, label: str) -> str:
    """The name of a point to its right, or to its left where it would not fit."""
    fits = x + 9 + LETTER * len(label) <= WIDTH
    place, anchor = (x + 9, "start") if fits else (x - 9, "end")
    return _text(place, y + 4, label, anchor=anchor, css="ink", fill=INK)


def heat(report: Report) -> Picture | None:
    """Use by weekday and hour, in five steps of 20 %."""
    if not any(value is not None for row in report.heat for value in row):
        return None
    left, cell, high = 80, (WIDTH - 80) / 24, 22

    def body() -> Iterator[str]:
        for hour in range(0, 24, 3):
            yield _text(left + hour * cell, 12, f"{hour:02d}:00")
        for day, row in enumerate(report.heat):
            y = 18 + day * high
            yield _text(left - 8, y + 15, WEEKDAYS[day], anchor="end")
            for hour, value in enumerate(row):
                level = "none" if value is None else str(_level(value))
                fill = "none" if value is None else RAMP[_level(value)]
                words = "not measured" if value is None else f"{value:.0f} % used"
                yield (
                    f'<rect class="h{level}" x="{left + hour * cell + 1:.1f}" y="{y}"'
                    f' width="{cell - 2:.1f}" height="{high - 2}" fill="{fill}" stroke="{LINE}">'
                    f"<title>{WEEKDAYS[day]} {hour:02d}:00: {words}</title></rect>"
                )

    return Picture(
        "heat",
        "Use by hour of the week",
        "heat",
        _svg(18 + 7 * high + 4, "Used part of the GPU time by weekday and hour", body()),
        joined(
            of_all_users(report),
            "Darker: more of the measured GPU time was used, in steps of 20 %."
            " Empty: not measured.",
            in_zone(report, "Hours"),
        ),
    )


def timeline(report: Report, looks: Looks) -> Picture | None:
    """GPUs by time: the main user of each, idle time hatched, incidents as triangles."""
    gpus = [gpu for gpu in report.gpus if gpu.spans or gpu.marks]
    if not gpus:
        return None
    owners = list(dict.fromkeys(span.user for gpu in gpus for span in gpu.spans))
    since, until = report.period.since.timestamp(), report.period.until.timestamp()
    left, high = 110, 24
    wide = WIDTH - left - 6

    def x(t: float) -> float:
        return left + wide * min(1.0, max(0.0, (t - since) / (until - since)))

    def body() -> Iterator[str]:
        yield _patterns()
        yield _line_patterns(owners, looks)
        yield from _time_axis(report, x, 14, len(report.gpus) * high)
        for index, gpu in enumerate(report.gpus):
            y = 20 + index * high
            yield _text(left - 8, y + 14, gpu.name, anchor="end", css="ink", fill=INK)
            yield _rect(left, y + 2, wide, high - 8, "#eceef2", "ground")
            for span in gpu.spans:
                yield from _span(span, looks, x, y + 2, high - 8)
            for t, title in gpu.marks:
                if since <= t < until:
                    yield _triangle(x(t), y + high - 4, title)

    return Picture(
        "timeline",
        "Occupancy of the GPUs",
        "timeline",
        _svg(
            24 + len(report.gpus) * high + 20 * (1 + len(owners) // 7),
            "Main user of each GPU over time",
            [*body(), *_legend(owners, looks, 30 + len(report.gpus) * high)],
        ),
        joined(
            of_all_users(report),
            "Colour: the user who held most of the GPU. Hatched: held without use. Dotted: the use"
            " is unknown. Triangles: incidents.",
            in_zone(report, "Times"),
        ),
    )


def waits(report: Report) -> Picture | None:
    """Job-hours waited, as bars over time."""
    if not report.waits:
        return None
    since, until = report.period.since.timestamp(), report.period.until.timestamp()
    step = min((b[0] - a[0] for a, b in pairwise(report.waits)), default=3600)
    top = nice_ceiling(max(hours for _, hours in report.waits))
    left, wide, high = 56, WIDTH - 62, 120

    def x(t: float) -> float:
        return left + wide * min(1.0, max(0.0, (t - since) / (until - since)))

    def body() -> Iterator[str]:
        yield from _time_axis(report, x, 12, high + 6)
        for part in (0, 0.5, 1):
            y = 18 + high * (1 - part)
            yield f'<path class="axis" d="M{left} {y:.1f}h{wide}" stroke="{LINE}"/>'
            yield _text(left - 6, y + 4, f"{top * part:g} h", anchor="end")
        for t, hours in report.waits:
            tall = high * hours / top
            width = max(1.0, x(t + step) - x(t) - 1)
            yield _rect(x(t), 18 + high - tall, width, tall, WARN, "wait")

    return Picture(
        "waits",
        "Waits over time",
        "waits",
        _svg(high + 26, "Job-hours waited over time", body()),
        joined(
            "Hours that GPU jobs spent in the queue, summed over jobs.",
            of_all_jobs(report),
            in_zone(report, "Times"),
        ),
    )


def colour(user: str | None, looks: Looks) -> str:
    """The fill in a file; the style sheet of a page has its own."""
    look = looks.get(user or "")
    if look is None:
        return "#b9c1cc"
    return TONES[look.tone] if look.colour is None else COLOURS[look.colour]


def owner_css(user: str | None, looks: Looks) -> str:
    look = looks.get(user or "")
    return "u none" if look is None else f"u {look.css}"


def _owned(
    user: str | None, looks: Looks, x: float, y: float, width: float, high: float, words: str = ""
) -> str:
    """A bar of a user, with the lines of the user's pattern. words: already escaped."""
    box = f'x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{max(0.0, high):.1f}"'
    title = f"<title>{words}</title>" if words else ""
    css, fill = owner_css(user, looks), colour(user, looks)
    bar = f'<rect class="{css}" {box} fill="{fill}">{title}</rect>'
    look = looks.get(user or "")
    if look is None or look.colour is not None:
        return bar
    return f'{bar}<rect {box} fill="url(#{_lines(look)})">{title}</rect>'


def _lines(look: Look) -> str:
    return f"own-k{look.kind}d{look.density}"


def _line_patterns(users: Iterable[str | None], looks: Looks) -> str:
    """The definitions that the bars of these users need."""
    needed = {
        _lines(look): look
        for user in users
        if (look := looks.get(user or "")) is not None and look.colour is None
    }
    made = (
        f'<pattern id="{key}" width="{side}" height="{side}" viewBox="0 0 8 8"'
        f' patternUnits="userSpaceOnUse"><path d="{LINES[look.kind]}" fill="none"'
        f' stroke="{PATTERN_INK}" stroke-width="1.6"/></pattern>'
        for key, look in sorted(needed.items())
        for side in (look.side,)
    )
    return f"<defs>{''.join(made)}</defs>" if needed else ""


def spark(row: UserFigures) -> str:
    """Small bars of the GPU-hours used in the periods before and in this one; "" without any."""
    values = [*(point.used for point in row.trend), row.used]
    if len(values) < 2:
        return ""
    top = max(values) or 1.0
    bars = (
        _rect(i * 12, 18 - 18 * value / top, 9, 18 * value / top, BAR, "trend-bar")
        for i, value in enumerate(values)
    )
    words = ", ".join(f"{value:.1f}" for value in values)
    width = 12 * len(values)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="trend" width="{width}" height="18"'
        f' viewBox="0 0 {width} 18" role="img" aria-label="GPU-hours used: {words}">'
        f"<title>GPU-hours used, oldest first: {words}</title>{''.join(bars)}</svg>"
    )


def _span(span: Occupancy, looks: Looks, x: Place, y: float, high: float) -> Iterator[str]:
    begin, end = x(span.since), x(span.until)
    width = max(0.5, end - begin)
    used = "unknown" if span.used_pct is None else f"{span.used_pct:.0f} % used"
    words = escape(f"{name(span.user)}: {used}")
    yield _owned(span.user, looks, begin, y, width, high, words)
    if span.used_pct is None or span.used_pct < IDLE_PCT:
        pattern = "unknown" if span.used_pct is None else "idle"
        yield (
            f'<rect x="{begin:.1f}" y="{y}" width="{width:.1f}" height="{high}"'
            f' fill="url(#{pattern})"><title>{words}</title></rect>'
        )


def _patterns() -> str:
    return (
        '<defs><pattern id="idle" width="5" height="5" patternUnits="userSpaceOnUse"'
        ' patternTransform="rotate(45)"><rect width="3" height="5" fill="#fff"'
        ' fill-opacity=".75"/></pattern>'
        '<pattern id="unknown" width="6" height="6" patternUnits="userSpaceOnUse">'
        '<circle cx="3" cy="3" r="1.6" fill="#fff" fill-opacity=".85"/></pattern></defs>'
    )


def _triangle(x: float, y: float, title: str) -> str:
    return (
        f'<path class="incident" d="M{x - 4:.1f} {y}h8l-4 -8z" fill="{WARN}" stroke="#fff">'
        f"<title>{escape(title)}</title></path>"
    )


def _legend(owners: Sequence[str | None], looks: Looks, y: float) -> Iterator[str]:
    for index, owner in enumerate(owners):
        left, top = 110 + 90 * (index % 7), y + 18 * (index // 7)
        yield _owned(owner, looks, left, top, 10, 10)
        yield _text(left + 14, top + 9, _label(owner, 11))


def _label(user: str | None, most: int) -> str:
    """The name, cut where the picture has no room for more."""
    label = name(user)
    return label if len(label) <= most else f"{label[: most - 1]}…"


def _time_axis(report: Report, x: Place, y: float, high: float) -> Iterator[str]:
    """Ticks at local midnights, or at full hours of short periods."""
    for t, words in ticks(report):
        at = x(t)
        yield f'<path class="axis" d="M{at:.1f} {y + 4}v{high}" stroke="{LINE}"/>'
        anchor = "start" if at < 130 else "end" if at > WIDTH - 30 else "middle"
        title = f"<title>{datetime.fromtimestamp(t, UTC):%Y-%m-%d %H:%M} UTC</title></text>"
        yield _text(at, y - 2, words, anchor=anchor).replace("</text>", title)


def ticks(report: Report) -> list[tuple[float, str]]:
    """At most 9 round local times of the period, in epoch seconds, with their words."""
    zone = ZoneInfo(report.period.zone)
    hours = report.period.hours
    step = next((s for s in (1, 2, 3, 6, 12, 24, 48, 96, 168, 336, 744) if hours / s <= 8), 2190)
    local = report.period.since.astimezone(zone).replace(minute=0, second=0, microsecond=0)
    local = local.replace(hour=local.hour - local.hour % min(step, 24), tzinfo=None)
    ticks: list[tuple[float, str]] = []
    until = report.period.until.timestamp()
    while (t := local.replace(tzinfo=zone).timestamp()) < until:
        if t >= report.period.since.timestamp():
            ticks.append((t, f"{local:%H:%M}" if step < 24 else f"{local:%d %b}"))
        local += timedelta(hours=step)
    return ticks


def _x_axis(
    marks: Sequence[float], left: float, wide: float, high: float, unit: str
) -> Iterator[str]:
    for value in marks:
        at = left + wide * value / marks[-1]
        yield f'<path class="axis" d="M{at:.1f} 0v{high}" stroke="{LINE}"/>'
        yield _text(at, high + 18, f"{value:g} {unit}", anchor="middle")


def _level(pct: float) -> int:
    return 0 if pct < 1 else min(5, 1 + int(pct // 20))


def _rect(x: float, y: float, width: float, height: float, fill: str, css: str) -> str:
    return (
        f'<rect class="{css}" x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}"'
        f' height="{max(0.0, height):.1f}" fill="{fill}"/>'
    )


def _text(
    x: float, y: float, words: str, anchor: str = "start", css: str = "words", fill: str = MUTED
) -> str:
    return (
        f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">'
        f"{escape(words)}</text>"
    )


def _svg(height: float, title: str, body: Iterable[str], width: float = WIDTH) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="report-chart" width="100%"'
        f' viewBox="0 0 {width} {height:.0f}" font-family="{FONT}" font-size="12" role="img"'
        f' aria-label="{escape(title)}">{"".join(body)}</svg>'
    )
