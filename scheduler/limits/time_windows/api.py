"""REST: time windows in force, and the user's own requests."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal

from django.conf import settings
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest
from django.utils import timezone
from ninja import Field, Query, Router, Schema
from ninja.errors import HttpError
from ninja.responses import Status
from pydantic import BeforeValidator

from monitor.api import RequestBody, body_of, caller, sentence_error, stated
from monitor.facts.input_rules import possible_time
from monitor.pages.requests import InvalidInput
from scheduler.limits.time_windows import rows as window_rows
from scheduler.limits.time_windows.pages import LONGEST_REASON, WindowForm
from scheduler.limits.time_windows.policy import coming, current, describe
from scheduler.models import TimeWindow

router = Router()
DAY_SENTENCE = "Write a day between 1970 and 2199, such as 2026-03-02."
State = Literal["asked", "approved", "declined", "withdrawn"]


def _day(value: object) -> object:
    """A date as text, not a number of seconds, and one that can be shown in every zone."""
    try:
        day = value if isinstance(value, date) else date.fromisoformat(_text_of_day(value))
        possible_time(datetime(day.year, day.month, day.day, tzinfo=UTC))
    except ValueError:
        raise sentence_error(DAY_SENTENCE) from None
    return day


def _text_of_day(value: object) -> str:
    return value if isinstance(value, str) and re.fullmatch(r"[0-9-]{10}", value) else ""


Day = Annotated[date, BeforeValidator(_day)]
# A time of day has no offset, so it is no `time` of RFC 3339.
TimeOfDay = Annotated[
    str, Field(pattern="^([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?$", examples=["20:00"])
]
# WindowForm checks the values of these.
Weekday: Any = stated(int, minimum=0, maximum=6)
Zone: Any = stated(str, maxLength=64)
Share: Any = stated(float, minimum=1, maximum=100)
Reason: Any = stated(str, maxLength=LONGEST_REASON)


class WindowBody(RequestBody):
    """The requested time window, in its time zone."""

    days: list[Weekday] = Field(min_length=1, max_length=7, description="0 is Monday, 6 is Sunday.")
    start: TimeOfDay
    end: TimeOfDay = Field(description="A time before the start is on the next day.")
    zone: Zone | None = Field(None, description="Default: the server's zone.")
    gpus: list[str] = Field(
        default_factory=list, max_length=1000, description="UUIDs. Empty: all GPUs."
    )
    share_pct: Share = 100
    kept: bool = Field(True, description="False: the holder may use the GPUs only then.")
    first_day: Day | None = Field(None, description="From 1970 on.")
    last_day: Day | None = Field(None, description="Until 2199.")
    reason: Reason = Field("", description="For the operators who decide.")
    group: int | None = Field(
        None,
        ge=1,
        lt=2**63,
        description="One of your groups, which gets the window instead of you.",
    )


class WindowLine(Schema):
    id: int
    state: State
    holder: str
    words: str
    days: list[int]
    start: TimeOfDay
    end: TimeOfDay
    zone: str
    gpus: list[str]
    share_pct: float
    kept: bool
    first_day: date | None
    last_day: date | None
    now: bool = Field(description="The window is running now.")
    next_start: datetime | None
    reason: str | None = Field(description="Visible to the requester and to operators; else null.")
    answer: str = Field(description="The operators' answer, visible to all users.")
    asked_by: str
    decided_by: str | None


@router.get("", response=list[WindowLine], summary="List time windows", url_name="windows")
def list_windows(
    request: HttpRequest,
    state: Annotated[
        State, Query(description="States other than approved list only your own windows.")
    ] = "approved",
) -> list[dict[str, Any]]:
    person = caller(request)
    rows = window_rows.seen_by(person, TimeWindow.State(state))
    return [_line(row, person, timezone.now()) for row in rows]


@router.post("", response={201: WindowLine}, summary="Request a time window", url_name="windows")
def ask(request: HttpRequest, new: WindowBody) -> Status[dict[str, Any]]:
    """It has no effect before an operator approves it. That of an operator is approved at once."""
    person, now = caller(request), timezone.now()
    raw = new.model_dump(exclude={"group", "kept", "days"})
    form = WindowForm(
        {
            **raw,
            "zone": new.zone or settings.TIME_ZONE,
            "days": [str(day) for day in new.days],
            "kept": "yes" if new.kept else "no",
            "holder": f"user:{person.pk}" if new.group is None else f"group:{new.group}",
        },
        person=person,
        now=now,
    )
    if not form.is_valid():
        raise InvalidInput(form.mistakes())
    try:
        row = form.store(now)
    except window_rows.UnableToApprove as error:
        raise InvalidInput([("window", str(error))]) from None
    return Status(201, _line(row, person, now))


@router.post("{int:pk}/withdraw/", response=WindowLine, summary="Withdraw a time window")
def withdraw(request: HttpRequest, pk: int) -> dict[str, Any]:
    """Idempotent."""
    person = caller(request)
    visible = window_rows.seen_by(person, *TimeWindow.State)
    row = visible.filter(pk=pk).first() if pk < 2**63 else None
    if row is None:
        raise Http404(f"There is no window {pk}.")
    if not window_rows.may_withdraw(row, person):
        raise HttpError(403, "Only its holder, who asked for it, and operators may withdraw it.")
    window_rows.withdraw(pk, person, timezone.now())
    row.refresh_from_db()
    return _line(row, person, timezone.now())


def _line(row: TimeWindow, person: User, now: datetime) -> dict[str, Any]:
    fact = window_rows.fact(row)
    following = coming(fact, now)
    return body_of(
        WindowLine,
        fact,
        state=str(row.state),
        words=describe(fact),
        days=list(fact.days),
        start=f"{fact.start:%H:%M:%S}",
        end=f"{fact.end:%H:%M:%S}",
        gpus=list(fact.gpu_uuids),
        now=current(fact, now) is not None,
        next_start=None if following is None else following.start,
        reason=row.reason if window_rows.sees_reason(row, person) else None,
        answer=row.answer,
        asked_by=row.asked_by,
        decided_by=row.decided_by or None,
    )
