"""Pages of time windows: list, request, approve or decline, withdraw."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from monitor.api import posted_text
from monitor.facts.input_rules import is_number
from monitor.models import Gpu
from scheduler.facts.people import Window
from scheduler.limits.time_windows import charts
from scheduler.limits.time_windows import policy as window_calendar
from scheduler.limits.time_windows import rows as window_rows
from scheduler.limits.time_windows.charts import CalendarDay, CalendarGpu, CalendarRow
from scheduler.limits.time_windows.pages.forms import WindowForm, prefilled
from scheduler.limits.time_windows.policy import clashes, coming, current, describe, named, spans
from scheduler.models import TimeWindow

LONGEST_ANSWER = 500
DECISIONS = {"approve": TimeWindow.State.APPROVED, "decline": TimeWindow.State.DECLINED}


@require_safe
def all_windows(request: HttpRequest) -> HttpResponse:
    zone = timezone.get_current_timezone_name()
    text = request.GET.get("week", "0")
    week = min(int(text), LAST_WEEK) if is_number(text) else 0
    context = week_context(_person(request), timezone.now(), zone, week)
    return render(request, "scheduler/windows.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def ask(request: HttpRequest) -> HttpResponse:
    """The form for a window: a request, or of an operator the window itself."""
    person = _person(request)
    now = timezone.now()
    initial = prefilled(request.GET)
    form = WindowForm(request.POST or None, person=person, now=now, initial=initial)
    may_decide = window_rows.may_decide(person)
    if request.method == "POST" and form.is_valid():
        try:
            row = form.store(now)
        except window_rows.UnableToApprove as error:
            form.add_error(None, str(error))
        else:
            done = f"Approved: {describe(window_rows.fact(row))}."
            sent = "Request sent. This page shows the decision of the operator."
            messages.success(request, done if may_decide else sent)
            return redirect("windows")
    context = {"form": form, "may_decide": may_decide}
    return render(request, "scheduler/window_ask.html", context, status=422 if form.errors else 200)


@require_POST
def decide(request: HttpRequest, pk: int) -> HttpResponse:
    """Approve or decline a request, with an optional reason."""
    if not window_rows.may_decide(_person(request)):
        raise PermissionDenied
    state = DECISIONS.get(request.POST.get("decision", ""))
    if state is None:
        return HttpResponseBadRequest("The decision is approve or decline.")
    answer = posted_text(request, "answer", LONGEST_ANSWER)
    try:
        by = _person(request).username
        row = window_rows.decide(_row(request, pk).pk, state, by, timezone.now(), answer)
        if row is None:
            messages.info(request, "The request was already decided or withdrawn.")
        else:
            words = describe(window_rows.fact(row))
            messages.success(request, f"{row.get_state_display()}: {words}.")
    except window_rows.UnableToApprove as error:
        messages.error(request, str(error))
    return redirect("windows")


@require_POST
def withdraw(request: HttpRequest, pk: int) -> HttpResponse:
    row, person = _row(request, pk), _person(request)
    if not window_rows.may_withdraw(row, person):
        raise PermissionDenied
    if window_rows.withdraw(row.pk, person, timezone.now()):
        messages.success(request, f"Withdrawn: {describe(window_rows.fact(row))}.")
    else:
        messages.info(request, "The time window was already declined or withdrawn.")
    return redirect("windows")


def _person(request: HttpRequest) -> User:
    # The middleware admits authenticated users only.
    return cast(User, request.user)


def _row(request: HttpRequest, pk: int) -> TimeWindow:
    visible = window_rows.seen_by(_person(request), *TimeWindow.State)
    window = visible.filter(pk=pk).first() if pk < 2**63 else None
    if window is None:
        raise Http404(f"There is no time window {pk}.")
    return window


# Content of the page Time windows: the calendar, and each window on a strip of seven days.

WEEK = timedelta(days=7)
S = TimeWindow.State
# The strip's width, in units of its viewBox.
WIDTH = 1000
LAST_WEEK = 8


@dataclass(frozen=True, slots=True)
class WeekStrip:
    """Seven days from a midnight on. `now` is the position of the current time on the strip."""

    since: datetime
    days: tuple[str, ...]
    now: float
    zone: str

    def x(self, at: datetime) -> float:
        until = self.since + WEEK
        inside = (min(max(at, self.since), until) - self.since).total_seconds()
        return round(WIDTH * inside / WEEK.total_seconds(), 1)


@dataclass(frozen=True, slots=True)
class WindowLine:
    """A time window as one user sees it.

    words: as it was agreed, in its own zone. here, utc: its times this week in the viewer's zone
    and in UTC, "" if they are the same or there are none this week. now: it is current; next_at:
    its next start; bars: (x, width, times) on the strip.
    conflicts: approved windows that prevent an approval.
    """

    row: TimeWindow
    holder: str
    words: str
    gpus: str
    now: bool
    next_at: datetime | None
    mine: bool
    reason: str
    bars: tuple[tuple[float, float, str], ...]
    here: str = ""
    utc: str = ""
    conflicts: str = ""

    @property
    def key(self) -> str:
        return str(self.row.pk)

    @property
    def effect(self) -> str:
        """The effect of an approval."""
        if self.row.kept:
            return f"{self.gpus} will be reserved for {self.holder} in this time."
        return f"{self.holder} will use {self.gpus} only in this time."


@dataclass(frozen=True, slots=True)
class Calendar:
    """Seven days of all GPUs; `week`: how many weeks from now."""

    days: Sequence[CalendarDay]
    rows: Sequence[CalendarRow]
    zone: str
    week: int
    last_week: int = LAST_WEEK


def week_context(person: User, now: datetime, zone: str, week_number: int = 0) -> dict[str, Any]:
    strip = week(now, zone)
    past = window_rows.seen_by(person, S.DECLINED, S.WITHDRAWN).order_by("-decided_at")[:10]
    approved = list(window_rows.seen_by(person, S.APPROVED))
    requested = list(window_rows.seen_by(person, S.ASKED))
    rivals = window_rows.facts(approved)
    conflicts = {row.pk: clashes(window_rows.fact(row), rivals, now) for row in requested}
    return {
        "approved": lines(approved, person, now, strip),
        "asked": [
            replace(line, conflicts=named(clashing))
            for line, clashing in zip(
                lines(requested, person, now, strip), conflicts.values(), strict=True
            )
        ],
        "past": lines(past, person, now, strip),
        "calendar": calendar(
            [*((w, False) for w in rivals), *((w, True) for w in window_rows.facts(requested))],
            {pk for pk, clashing in conflicts.items() if clashing},
            zone,
            now,
            week_number,
        ),
        "week": strip,
        "may_decide": window_rows.may_decide(person),
    }


def calendar(
    windows: Sequence[tuple[Window, bool]],
    clashing: Collection[int],
    zone: str,
    now: datetime,
    week_number: int,
) -> Calendar:
    several = Gpu.objects.values("host").distinct().count() > 1
    gpus = [
        CalendarGpu(gpu.uuid, f"{gpu.host} GPU {gpu.index}" if several else f"GPU {gpu.index}")
        for gpu in Gpu.objects.order_by("host", "index")
    ]
    shown = charts.days(now, zone, week_number)
    rows = charts.rows(gpus, windows, clashing, shown, zone, now)
    return Calendar(shown, rows, zone, week_number)


def week(now: datetime, zone: str) -> WeekStrip:
    """The strip of the seven days that begin today."""
    today = now.astimezone(ZoneInfo(zone)).date()
    since = datetime.combine(today, time(0), ZoneInfo(zone))
    dates = [today + timedelta(days=n) for n in range(7)]
    days = tuple(f"{date:%a} {date.day}" for date in dates)
    strip = WeekStrip(since.astimezone(UTC), days, 0.0, zone)
    return replace(strip, now=strip.x(now))


def lines(
    rows: Iterable[TimeWindow], person: User, now: datetime, strip: WeekStrip
) -> list[WindowLine]:
    names = window_rows.gpu_names()
    return [_line(row, names, person, now, strip) for row in rows]


def _line(
    row: TimeWindow, names: dict[str, str], person: User, now: datetime, strip: WeekStrip
) -> WindowLine:
    fact = window_rows.fact(row)
    following = coming(fact, now)
    return WindowLine(
        row=row,
        holder=window_rows.holder(row),
        words=describe(fact),
        gpus=window_rows.gpus(row, names),
        now=current(fact, now) is not None,
        next_at=None if following is None else following.start,
        mine=window_rows.may_withdraw(row, person),
        reason=row.reason if window_rows.sees_reason(row, person) else "",
        bars=tuple(bars(fact, strip)),
        here=times_this_week(fact, strip, strip.zone),
        utc=times_this_week(fact, strip, "UTC"),
    )


def times_this_week(window: Window, strip: WeekStrip, zone: str) -> str:
    """Days and hours of the strip in this zone: "Sat, Sun 15:00–01:00 (America/New_York)".

    "" without any, and where the window's own zone has the same hours.
    """
    place, own = ZoneInfo(zone), ZoneInfo(window.zone)
    by_times: dict[str, list[int]] = {}
    differs = False
    for span in spans(window, strip.since, strip.since + WEEK):
        begin = span.start.astimezone(place)
        differs |= begin.utcoffset() != span.start.astimezone(own).utcoffset()
        times = charts.clock_times(span.start, span.end, place)
        by_times.setdefault(times, []).append(begin.weekday())
    words = "; ".join(f"{window_calendar.days(days)} {times}" for times, days in by_times.items())
    return f"{words} ({zone})" if differs else ""


def bars(window: Window, strip: WeekStrip) -> Iterable[tuple[float, float, str]]:
    """Position, width and times of each bar."""
    place = ZoneInfo(strip.zone)
    for span in spans(window, strip.since, strip.since + WEEK):
        start, end = strip.x(span.start), strip.x(span.end)
        begins = span.start.astimezone(place)
        words = f"{begins:%a} {begins.day} {charts.clock_times(span.start, span.end, place)}"
        utc = charts.times_in_utc(span.start, span.end, place)
        words += f" ({utc})" if utc else ""
        yield start, round(max(2.0, end - start), 1), words
