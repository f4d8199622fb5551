"""Template tags of jobs and shares: sizes, short times, bars of timelines and quotas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime

from django import template
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe
from msgspec import Struct

from monitor.facts.formats import UNKNOWN, duration, part, shortest_size, sig3
from monitor.facts.input_rules import escaped_json, escaped_lines
from monitor.owners.rows import look_of
from monitor.runtime.rows.extensions import parts
from monitor.templatetags.monitor_tags import user_colour, with_times
from scheduler.charts import Band, Bar, BarKind, Span, joined
from scheduler.facts.language_models import DayUse
from scheduler.jobs.pages import forms
from scheduler.limits.quotas.pages import QuotaFigure, decided_elsewhere
from scheduler.queue.planner.blockers import addressed

register = template.Library()
register.filter(part)
register.simple_tag(decided_elsewhere)
# Of many GPUs, shorter bars have no name.
LEAST_NAMED_S = 20 * 60
# A shorter pause between two stretches of idle memory is not drawn.
DRAWN_S = 180
COLOURS = re.compile(r"\x1b\[([0-9;]{0,40})m")
# Attributes that a number of a colour sequence switches off.
ANSI_OFF = {22: {1, 2}, 23: {3}, 24: {4}, 39: {*range(30, 38), *range(90, 98)}}
ANSI_OFF[49] = {*range(40, 48), *range(100, 108)}
ANSI_KNOWN = {1, 2, 3, 4} | ANSI_OFF[39] | ANSI_OFF[49]


class AnsiState(Struct, frozen=True):
    """The attributes that are on, as numbers of SGR. Only the 16 basic colours are known."""

    on: frozenset[int] = frozenset()

    @property
    def css(self) -> str:
        return " ".join(f"a{number}" for number in sorted(self.on))

    @property
    def numbers(self) -> str:
        return ";".join(map(str, sorted(self.on)))

    def after(self, numbers: str) -> AnsiState:
        on, rest = set(self.on), [int(n) if n else 0 for n in numbers.split(";")]
        while rest:
            number = rest.pop(0)
            if number in (38, 48):
                # 5;N or 2;R;G;B follow.
                del rest[: {5: 2, 2: 4}.get(rest[0] if rest else 0, 0)]
            elif number == 0:
                on.clear()
            elif number in ANSI_OFF:
                on -= ANSI_OFF[number]
            elif number in ANSI_KNOWN:
                on -= next((ANSI_OFF[k] for k in (39, 49) if number in ANSI_OFF[k]), set())
                on.add(number)
        return AnsiState(frozenset(on))


@register.filter
def size(value: int | None) -> str:
    """Bytes in the unit that reads best: "812 B", "64 KiB", "1.25 GiB"."""
    return UNKNOWN if value is None else shortest_size(value)


@register.filter
def mebibytes(value: int | None) -> str:
    """Whole MiB in the unit that reads best: "14 GiB"."""
    return size(None if value is None else value * 1024**2)


@register.filter
def compact_json(value: object) -> str:
    r"""A JSON value in one line; control and format characters as \uXXXX."""
    return escaped_json(json.dumps(value, ensure_ascii=False))


@register.filter
def plain_lines(text: str) -> str:
    r"""Lines of a user; control and format characters as \x1b or \u202e."""
    return escaped_lines(text)


@register.filter
def brief(seconds: float | None) -> str:
    """A time that may be short: exact below a minute, as many jobs differ only there."""
    if seconds is None:
        return UNKNOWN
    return duration(seconds) if seconds >= 60 else f"{sig3(seconds)} s"


@register.filter
def ansi(text: str) -> SafeString:
    """A log whose colours are spans; `data-s` has the numbers for the page's script."""
    pieces = COLOURS.split(text)
    shown, state = [escape(pieces[0])], AnsiState()
    for numbers, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        state = state.after(numbers)
        if not piece:
            continue
        shown.append(
            format_html('<span class="{}" data-s="{}">{}</span>', state.css, state.numbers, piece)
            if state.css
            else escape(piece)
        )
    return mark_safe("".join(shown))  # noqa: S308 - each piece is escaped


@register.filter
def sentence(text: str, viewer: str = "") -> SafeString:
    """Sentences about a blocker, addressed to this user, with times in the viewer's zone."""
    return with_times(addressed(text, viewer))


@register.simple_tag
def example_submission() -> str:
    """A command to try first, which runs on servers without GPUs too."""
    return forms.example().line()


@register.filter
def gpu_hours_of(seconds: float) -> str:
    """GPU-seconds as GPU-hours with three digits."""
    return sig3(seconds / 3600)


@register.filter
def moment(t: int) -> datetime:
    """Epoch seconds as a datetime."""
    return datetime.fromtimestamp(t, UTC)


@register.simple_tag
def timeline_box(span: Span) -> str:
    """The viewBox of a row: seconds since `span.base`, and 100 units of height."""
    return f"{span.since - span.base} 0 {span.until - span.since} 100"


@register.simple_tag
def timeline_band(band: Band, span: Span) -> SafeString:
    """A time window's band in a row of the timeline."""
    words = f"time window of {band.holder}" + ("" if band.kept else " (limit)")
    return format_html(
        '<rect class="tl-band {}{}" x="{}" width="{}" height="100" data-begin="{}" data-end="{}"'
        ' data-say="{}"/>',
        user_colour(band.holder),
        "" if band.kept else " limit",
        band.begin - span.base,
        band.end - band.begin,
        band.begin,
        band.end,
        words,
    )


@register.simple_tag
def timeline_bar(bar: Bar, lane: int, lanes: int, span: Span) -> SafeString:
    """A bar of the timeline: a link to its job or user, with what is expected after now."""
    y, height = round(100 * lane / lanes + 2, 1), round(100 / lanes - 4, 1)
    shapes = "".join(_shapes(bar, span, f'y="{y}" height="{height}"'))
    return format_html(
        '<a class="tl-link {}{} {}" href="{}" tabindex="-1" aria-label="{}" data-owner="{}"'
        ' data-begin="{}" data-end="{}">{}</a>',
        bar.kind.value,
        " dense" if bar.count > 1 else "",
        user_colour(bar.owner),
        _address(bar),
        bar_words(bar),
        bar.owner or "",
        bar.begin,
        bar.end or bar.expected_end or "",
        mark_safe(shapes),  # noqa: S308 - numbers only
    )


def _shapes(bar: Bar, span: Span, place: str) -> Iterator[str]:
    """The rectangles of a bar, with the pattern of its owner. The browser moves those of now."""
    begin, now, after = bar.begin - span.base, span.now - span.base, bar.expected_end
    if bar.kind == BarKind.EXPECTED:
        end = (after or span.until) - span.base
        yield f'<rect class="rest" x="{begin}" width="{max(1, end - begin)}" {place}/>'
        return
    is_neutral = bar.owner is not None and look_of(bar.owner).colour is None
    for css in ("body", "pattern") if is_neutral else ("body",):
        if bar.end is not None:
            yield f'<rect class="{css}" x="{begin}" width="{max(1, bar.end - bar.begin)}" {place}/>'
        else:
            width = max(1, now - begin)
            yield f'<rect class="{css}" x="{begin}" width="{width}" {place} data-to="now"/>'
    if bar.end is None and after:
        end = after - span.base
        width = max(1, end - now)
        yield f'<rect class="rest" x="{now}" width="{width}" {place} data-until="{end}"/>'
    for since, until in joined(bar.idle, DRAWN_S):
        yield f'<rect class="idle" x="{since - span.base}" width="{until - since}" {place}/>'


@register.simple_tag
def timeline_label(bar: Bar, lane: int, lanes: int, span: Span, many: bool = False) -> SafeString:
    """The owner's name on a bar, and that of the job; their mark where there is no room.

    many: of many GPUs, rows with lanes are too low for names, and short bars too narrow.
    """
    end = bar.end or (bar.expected_end if bar.kind == BarKind.EXPECTED else span.now)
    if many and (lanes > 1 or (end or span.until) - bar.begin < LEAST_NAMED_S):
        return SafeString("")
    return format_html(
        '<svg class="tl-label {} {}" x="{}%" y="{}%" width="{}%" height="{}%" data-from="{}"'
        ' data-to="{}" data-mark="{}"><text x="4" y="50%">{}</text></svg>',
        bar.kind.value,
        user_colour(bar.owner),
        span.x(bar.begin),
        round(100 * lane / lanes, 1),
        span.width(bar.begin, end or span.until),
        round(100 / lanes, 1),
        bar.begin,
        # An expected run without a known end goes on to the end of the view.
        (end or "Infinity") if bar.end or bar.kind == BarKind.EXPECTED else "now",
        look_of(bar.owner).mark if bar.owner else "?",
        bar.submitter if bar.kind is BarKind.USE else f"{bar.submitter} · {bar.label}",
    )


@register.simple_tag
def bar_words(bar: Bar) -> str:
    """Such as "job 12 train, alice, running"; times are told beside it."""
    if bar.count > 1:
        taken_s = sum(end - begin for begin, end in bar.taken)
        whole_s = (bar.end or bar.expected_end or bar.begin) - bar.begin
        is_use = bar.kind is BarKind.USE
        names = f"{bar.count} {'uses outside the queue' if is_use else 'jobs'}, {bar.submitter}"
        state = "" if is_use else f", {bar.state}"
        return f"{names}{state}, together {duration(taken_s)} of {duration(whole_s)}"
    if bar.job is None:
        return f"{bar.submitter}, outside the queue"
    return f"job {bar.label}, {bar.submitter}, {bar.state}"


def _address(bar: Bar) -> str:
    if bar.job is not None:
        return reverse("job", args=[bar.job])
    return reverse("person", args=[bar.owner]) if bar.owner else reverse("gpu", args=[bar.gpu_uuid])


@register.simple_tag
def timeline_now(span: Span) -> float:
    """Where now is, in percent of the width."""
    return span.x(span.now)


@register.simple_tag
def idle_length(bar: Bar) -> str:
    """How long memory was held idle."""
    return duration(sum(end - begin for begin, end in bar.idle))


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
