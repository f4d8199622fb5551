"""REST: agreed times, those in force and one's own requests."""

from __future__ import annotations

from datetime import date, datetime, time
from typing import Annotated, Any, Literal

from django.conf import settings
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest
from django.utils import timezone
from ninja import Field, Query, Router, Schema
from ninja.errors import HttpError
from ninja.responses import Status

from scheduler import windows
from scheduler.models import TimeWindow
from scheduler.pages.window_forms import WindowForm
from scheduler.policy.calendar import coming, current, describe

router = Router()
State = Literal["asked", "approved", "declined", "withdrawn"]


class WindowBody(Schema):
    """What to ask for. Days: 0 is Monday."""

    days: list[int] = Field(description="0 Monday … 6 Sunday.")
    start: time
    end: time = Field(description="Not after the start: on the next day.")
    zone: str | None = Field(None, description="Default: the server's.")
    gpus: list[str] = Field(default_factory=list, description="UUIDs; none: all.")
    share_pct: float = 100
    kept: bool = Field(True, description="False: the holder may use the GPUs only then.")
    first_day: date | None = None
    last_day: date | None = None
    reason: str = ""
    group: int | None = Field(None, description="For this group of yours instead of you.")


class WindowLine(Schema):
    id: int
    state: State
    holder: str
    words: str
    days: list[int]
    start: time
    end: time
    zone: str
    gpus: list[str]
    share_pct: float
    kept: bool
    first_day: date | None
    last_day: date | None
    now: bool = Field(description="It goes on at this moment.")
    next_start: datetime | None
    reason: str
    answer: str
    asked_by: str
    decided_by: str | None


@router.get("", response=list[WindowLine], summary="List agreed times", url_name="windows")
def list_windows(
    request: HttpRequest,
    state: Annotated[
        State, Query(description="Others than approved: your own alone.")
    ] = "approved",
) -> list[dict[str, Any]]:
    rows = windows.seen_by(_person(request), TimeWindow.State(state))
    return [_line(row, timezone.now()) for row in rows]


@router.post("", response={201: WindowLine}, summary="Ask for a time", url_name="windows")
def ask(request: HttpRequest, new: WindowBody) -> Status[dict[str, Any]]:
    """An operator decides on it. 422: `detail` says what is wrong."""
    person, now = _person(request), timezone.now()
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
        raise HttpError(422, form.mistakes())
    return Status(201, _line(windows.ask(form.asked(), person, now), now))


@router.post("{int:pk}/withdraw/", response=WindowLine, summary="Withdraw a time")
def withdraw(request: HttpRequest, pk: int) -> dict[str, Any]:
    """Twice is fine."""
    person = _person(request)
    seen = windows.seen_by(person, *TimeWindow.State)
    row = seen.filter(pk=pk).first() if pk < 2**63 else None
    if row is None:
        raise Http404(f"There is no window {pk}.")
    if not windows.may_withdraw(row, person):
        raise HttpError(403, "Only its holder, who asked for it, and operators may withdraw it.")
    windows.withdraw(pk, person, timezone.now())
    row.refresh_from_db()
    return _line(row, timezone.now())


def _line(row: TimeWindow, now: datetime) -> dict[str, Any]:
    fact = windows.fact(row)
    following = coming(fact, now)
    return {
        "id": row.pk,
        "state": str(row.state),
        "holder": fact.holder,
        "words": describe(fact),
        "days": list(fact.days),
        "start": fact.start,
        "end": fact.end,
        "zone": fact.zone,
        "gpus": list(fact.gpu_uuids),
        "share_pct": fact.share_pct,
        "kept": fact.kept,
        "first_day": fact.first_day,
        "last_day": fact.last_day,
        "now": current(fact, now) is not None,
        "next_start": None if following is None else following.start,
        "reason": row.reason,
        "answer": row.answer,
        "asked_by": row.asked_by,
        "decided_by": row.decided_by or None,
    }


def _person(request: HttpRequest) -> User:
    person: User = request.auth  # type: ignore[attr-defined]
    return person
