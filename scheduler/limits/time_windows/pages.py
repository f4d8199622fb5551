"""The form to request a time window.

Pages of time windows: list, request, approve or decline, withdraw.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo, available_timezones

from django import forms
from django.contrib import messages
from django.contrib.auth.models import Group, User
from django.core.exceptions import NON_FIELD_ERRORS, PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest, QueryDict
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.input_rules import character_problem, is_number
from monitor.models import Gpu
from monitor.pages.requests import posted_text
from scheduler import charts
from scheduler.charts import CalendarDay, CalendarGpu, CalendarRow
from scheduler.facts.language_models import OWNER
from scheduler.facts.people import Window
from scheduler.limits.time_windows import policy as window_calendar
from scheduler.limits.time_windows import rows as window_rows
from scheduler.limits.time_windows.policy import (
    DAYS,
    clashes,
    coming,
    current,
    describe,
    named,
    skipped_time,
    spans,
)
from scheduler.models import TimeWindow

DAY_CHOICES = [(str(number), name) for number, name in enumerate(DAYS)]
MOST_OPEN = 20
LONGEST_REASON = 1000
CLOCK = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
SKIPPED = (
    "{at:%H:%M} does not exist on {day} {at:%B %Y} in {zone}: clocks go forward then. "
    "Choose another time or other days."
)


class WindowForm(forms.ModelForm):  # type: ignore[type-arg]
    """Users request for themselves and their groups; operators for all users."""

    holder = forms.ChoiceField(label="For")
    days = forms.MultipleChoiceField(choices=DAY_CHOICES, widget=forms.CheckboxSelectMultiple)
    gpus = forms.MultipleChoiceField(
        label="GPUs", required=False, widget=forms.CheckboxSelectMultiple
    )
    zone = forms.CharField(label="Time zone")
    kept = forms.ChoiceField(
        label="Type",
        choices=[
            ("yes", "exclusive: the GPUs are kept free for the holder"),
            ("no", "limit: the holder uses these GPUs only in this time"),
        ],
        widget=forms.RadioSelect,
        initial="yes",
    )

    reason = forms.CharField(
        label="Reason",
        max_length=LONGEST_REASON,
        required=False,
        widget=forms.Textarea({"rows": 2}),
    )

    class Meta:
        model = TimeWindow
        fields = ("start", "end", "share_pct", "first_day", "last_day", "reason")
        widgets = {
            "start": forms.TimeInput({"type": "time"}, format="%H:%M"),
            "end": forms.TimeInput({"type": "time"}, format="%H:%M"),
            "first_day": forms.DateInput({"type": "date"}),
            "last_day": forms.DateInput({"type": "date"}),
            "share_pct": forms.NumberInput({"min": 1, "max": 100, "step": 1}),
        }
        labels = {
            "start": "From",
            "end": "To",
            "share_pct": "Share of each GPU (%)",
            "first_day": "First day",
            "last_day": "Last day",
        }

    HINTS = {
        "gpus": "Default: all GPUs.",
        "end": "If this is earlier than the start, the window ends on the next day.",
        "first_day": "Default: today.",
        "last_day": "Default: no end.",
        "reason": "Only you and the operators can read it.",
    }

    def __init__(self, *args: Any, person: User, now: datetime, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._person = person
        self._now = now
        models = _model_services()
        self.fields["holder"].choices = [  # type: ignore[attr-defined]
            (key, name) for key, name in self._holders() if key not in models
        ]
        if self.is_bound and self.data.get("holder") in models:
            self.fields["holder"].error_messages["invalid_choice"] = window_rows.OF_MODELS
        self.fields["gpus"].choices = [  # type: ignore[attr-defined]
            (gpu.uuid, f"GPU {gpu.index}{_of(gpu)}") for gpu in _gpus()
        ]
        self.fields["zone"].initial = timezone.get_current_timezone_name()
        for name, hint in self.HINTS.items():
            self.fields[name].help_text = hint

    def _holders(self) -> list[tuple[str, str]]:
        person = self._person
        groups = Group.objects.all() if person.is_staff else person.groups.all()
        people = User.objects.filter(is_active=True) if person.is_staff else [person]
        me = (f"user:{person.pk}", "me")
        others = [(f"user:{user.pk}", user.username) for user in people if user.pk != person.pk]
        return [me, *((f"group:{g.pk}", f"the group {g.name}") for g in groups), *others]

    def clean_zone(self) -> str:
        zone: str = self.cleaned_data["zone"].strip()
        if zone not in available_timezones():
            raise forms.ValidationError("Write a time zone such as Europe/Berlin or UTC.")
        return zone

    def clean_share_pct(self) -> float:
        if not str(self.data.get("share_pct", "")).isascii():
            raise forms.ValidationError("Write the number in ASCII digits, such as 50.")
        share: float = self.cleaned_data["share_pct"]
        return share

    def clean_reason(self) -> str:
        reason: str = self.cleaned_data["reason"]
        if problem := character_problem(reason, lines=True):
            raise forms.ValidationError(problem)
        return reason

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        first, last = cleaned.get("first_day"), cleaned.get("last_day")
        if first and last and last < first:
            self.add_error("last_day", "The last day must not be before the first day.")
        if window_rows.open_requests(self._person) >= MOST_OPEN:
            raise forms.ValidationError(
                f"You have {MOST_OPEN} pending requests. Withdraw one first."
            )
        return cleaned

    def _post_clean(self) -> None:
        """Check the dates here: the row exists only after the fields are cleaned."""
        super()._post_clean()  # type: ignore[misc]
        if not self.errors:
            window = window_rows.fact(self.window())
            if at := skipped_time(window, self._now):
                name = "start" if at.time() == window.start else "end"
                self.add_error(name, SKIPPED.format(at=at, day=at.day, zone=window.zone))
            elif coming(window, self._now) is None and current(window, self._now) is None:
                self.add_error("last_day", "The time window does not occur before this day.")

    def mistakes(self) -> list[tuple[str, str]]:
        """Errors by REST field: `group` is the holder, `window` the form as a whole."""
        names = {"holder": "group", NON_FIELD_ERRORS: "window"}
        return [
            (names.get(name, name), " ".join(map(str, errors)))
            for name, errors in self.errors.items()
        ]

    def store(self, now: datetime) -> TimeWindow:
        """Request the window of a valid form; that of an operator needs no approval.

        Raises UnableToApprove.
        """
        if window_rows.may_decide(self._person):
            return window_rows.add(self.window(), self._person, now)
        return window_rows.ask(self.window(), self._person, now)

    def window(self) -> TimeWindow:
        """The unsaved row of a valid form."""
        row: TimeWindow = self.save(commit=False)
        kind, _, key = self.cleaned_data["holder"].partition(":")
        row.user = User.objects.get(pk=key) if kind == "user" else None
        row.group = Group.objects.get(pk=key) if kind == "group" else None
        row.days = sorted(int(day) for day in self.cleaned_data["days"])
        row.gpu_uuids = self.cleaned_data["gpus"]
        row.zone = self.cleaned_data["zone"]
        row.kept = self.cleaned_data["kept"] == "yes"
        return row


def prefilled(query: QueryDict) -> dict[str, Any]:
    """Initial values from an address, such as a selection in the calendar. Others are ignored."""
    uuids = {gpu.uuid for gpu in _gpus()}
    chosen: dict[str, Any] = {
        "days": [day for day in query.getlist("days") if day in dict(DAY_CHOICES)],
        "gpus": [uuid for uuid in query.getlist("gpus") if uuid in uuids],
    }
    chosen |= {name: query.get(name, "") for name in ("start", "end")}
    chosen |= {name: "" for name in ("start", "end") if not CLOCK.fullmatch(chosen[name])}
    return {name: value for name, value in chosen.items() if value}


def _model_services() -> list[str]:
    """The key of the user that owns the jobs of model services; empty if there is none."""
    rows = User.objects.filter(username=OWNER)
    return [f"user:{pk}" for pk in rows.values_list("pk", flat=True)]


def _gpus() -> list[Gpu]:
    return list(Gpu.objects.order_by("host", "index"))


def _of(gpu: Gpu) -> str:
    """The host in words, if there are several hosts."""
    several = Gpu.objects.values("host").distinct().count() > 1
    return f" on {gpu.host}" if several else ""


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


class WeekStrip(Struct, frozen=True):
    """Seven days from a midnight on. `now` is the position of the current time on the strip."""

    since: datetime
    days: tuple[str, ...]
    now: float
    zone: str

    def x(self, at: datetime) -> float:
        until = self.since + WEEK
        inside = (min(max(at, self.since), until) - self.since).total_seconds()
        return round(WIDTH * inside / WEEK.total_seconds(), 1)


class WindowLine(Struct, frozen=True):
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


class Calendar(Struct, frozen=True):
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
    rows = charts.calendar_rows(gpus, windows, clashing, shown, zone, now)
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
