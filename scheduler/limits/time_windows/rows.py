"""Rows: time windows: requested, approved, declined or withdrawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q, QuerySet

from monitor.facts.formats import fact_from
from monitor.journal.rows import audit, events
from monitor.models import Gpu
from monitor.runtime.rows.database import compiled_once
from monitor.runtime.rows.item_isolation import Convert, convert_all
from monitor.runtime.rows.wakeups import wake
from scheduler.facts.language_models import OWNER
from scheduler.facts.people import Window
from scheduler.limits.time_windows.policy import clashes, describe, named
from scheduler.models import TimeWindow

APPROVED, ASKED = TimeWindow.State.APPROVED, TimeWindow.State.ASKED
WINDOW_KINDS = {
    TimeWindow.State.ASKED: "WINDOW_ASKED",
    TimeWindow.State.APPROVED: "WINDOW_APPROVED",
    TimeWindow.State.DECLINED: "WINDOW_DECLINED",
    TimeWindow.State.WITHDRAWN: "WINDOW_WITHDRAWN",
}
OF_MODELS = (
    f"The user {OWNER} stands for model services, which have no time windows. "
    "Choose a user or a group."
)


class UnableToApprove(Exception):
    """Another window conflicts, or the holder can have none; the message says which."""


def approved(convert: Convert = convert_all) -> tuple[Window, ...]:
    """All approved windows, without those that `convert` leaves out."""
    return tuple(window for _, window in convert(_approved(), str, _checked))


@compiled_once
def _approved() -> QuerySet[TimeWindow]:
    return _rows().filter(state=APPROVED)


def _checked(row: TimeWindow) -> Window:
    """Raises when the zone of the window does not exist."""
    window = fact(row)
    ZoneInfo(window.zone)
    return window


def facts(rows: Iterable[TimeWindow]) -> tuple[Window, ...]:
    return tuple(fact(row) for row in rows)


def fact(row: TimeWindow) -> Window:
    return fact_from(
        Window,
        row,
        id=row.pk or 0,
        holder=holder(row),
        members=frozenset(_members(row)),
        days=tuple(sorted(row.days)),
        gpu_uuids=tuple(row.gpu_uuids),
    )


def holder(row: TimeWindow) -> str:
    """The name of the user or of the group."""
    return row.user.username if row.user else str(row.group)


def gpu_names() -> dict[str, str]:
    return {gpu.uuid: f"GPU {gpu.index}" for gpu in Gpu.objects.all()}


def gpus(row: TimeWindow, names: Mapping[str, str]) -> str:
    """The GPUs in words: "50 % of GPU 1, GPU 2"."""
    which = ", ".join(names.get(uuid, uuid[:12]) for uuid in row.gpu_uuids) or "all GPUs"
    return f"{row.share_pct:g} % of {which}" if row.share_pct < 100 else which


def _members(row: TimeWindow) -> Iterable[str]:
    if row.user:
        return [row.user.username]
    return (user.username for user in row.group.user_set.all()) if row.group else ()


def _rows() -> QuerySet[TimeWindow]:
    windows = TimeWindow.objects.select_related("user", "group").order_by("id")
    return windows.prefetch_related("group__user_set")


def may_decide(user: User) -> bool:
    """Whether the user decides on windows; not by a token without the rights of staff."""
    return user.is_staff and user.has_perm("scheduler.change_timewindow")


def ask(row: TimeWindow, by: User, now: datetime) -> TimeWindow:
    """Request a window. `row` has been checked and is not saved yet."""
    row.state, row.asked_by, row.asked_at = ASKED, by.username, now
    with transaction.atomic():
        row.save()
        _record(row, by.username, now, f"asks for {describe(fact(row))}")
    return row


def add(row: TimeWindow, by: User, now: datetime) -> TimeWindow:
    """Approve a new window at once. The caller has checked may_decide().

    `row` has been checked and is not saved yet. Raises UnableToApprove.
    """
    with transaction.atomic():
        _refuse_clash(row, now)
        row.state, row.asked_by, row.asked_at = APPROVED, by.username, now
        row.decided_by, row.decided_at = by.username, now
        row.save()
        _record(row, by.username, now, f"added {holder(row)}'s {describe(fact(row))}")
    return row


def decide(
    row_id: int, state: TimeWindow.State, by: str, now: datetime, answer: str = ""
) -> TimeWindow | None:
    """Approve or decline a window. A decision can be changed later.

    None = the window is gone, withdrawn, or already in that state. Raises UnableToApprove.
    """
    with transaction.atomic():
        row = _rows().select_for_update(of=("self",)).filter(pk=row_id).first()
        if row is None or row.state in (state, TimeWindow.State.WITHDRAWN):
            return None
        if state == APPROVED:
            if holder(row) == OWNER and row.user:
                raise UnableToApprove(OF_MODELS)
            _refuse_clash(row, now)
        before = row.state
        row.state, row.decided_by, row.decided_at, row.answer = state, by, now, answer
        row.save(update_fields=["state", "decided_by", "decided_at", "answer"])
        reason = f": {answer}" if answer else ""
        action = f"{row.get_state_display().lower()} {holder(row)}'s {describe(fact(row))}{reason}"
        _record(row, by, now, action, before)
    return row


def withdraw(row_id: int, by: User, now: datetime) -> bool:
    """Withdraw a window. The caller has checked may_withdraw(). False = it was not open."""
    open_states = (ASKED, APPROVED)
    with transaction.atomic():
        row = _rows().select_for_update(of=("self",)).filter(pk=row_id).first()
        if row is None or row.state not in open_states:
            return False
        before = row.state
        row.state, row.decided_by, row.decided_at = (
            TimeWindow.State.WITHDRAWN,
            by.username,
            now,
        )
        row.save(update_fields=["state", "decided_by", "decided_at"])
        _record(row, by.username, now, f"withdrew {describe(fact(row))}", before)
    return True


def may_withdraw(row: TimeWindow, person: User) -> bool:
    return person.is_staff or person.username == row.asked_by or row.user_id == person.pk


def sees_reason(row: TimeWindow, person: User) -> bool:
    """The reason is for the requester and the operators, also once the window is approved."""
    return person.is_staff or person.username == row.asked_by


def open_requests(person: User) -> int:
    """Number of the user's requests that wait for a decision."""
    return TimeWindow.objects.filter(asked_by=person.username, state=ASKED).count()


def seen_by(person: User, *states: TimeWindow.State) -> QuerySet[TimeWindow]:
    """All users see approved windows; requests are visible to their users and to operators."""
    windows = _rows().filter(state__in=states)
    if person.is_staff:
        return windows
    own = Q(asked_by=person.username) | Q(user=person) | Q(group__in=person.groups.all())
    return windows.filter(Q(state=APPROVED) | own)


def _refuse_clash(row: TimeWindow, now: datetime) -> None:
    clashing = clashes(fact(row), approved(), now)
    if clashing:
        raise UnableToApprove(
            f"Together with {named(clashing)} it would keep more than a whole GPU. "
            "Approve a smaller share or other hours, or decline the other one first."
        )


def _record(
    row: TimeWindow, by: str, now: datetime, action: str, before: str | None = None
) -> None:
    text = f"{by} {action}"
    after: dict[str, Any] = {"state": str(row.state)}
    audit.note(
        WINDOW_KINDS[TimeWindow.State(row.state)],
        text,
        by=by,
        now=now,
        subject=f"window {row.pk}",
        before=None if before is None else {"state": str(before)},
        after=after,
    )
    owner = row.user.username if row.user else ""
    events.add(WINDOW_KINDS[TimeWindow.State(row.state)], text, now=now, owner=owner)
    wake("scheduler")
