from __future__ import annotations

from datetime import time
from typing import Any

import pytest
from django.contrib.auth.models import Group, User

from monitor.journal.rows import events
from monitor.models import AuditEntry
from scheduler.limits.time_windows import rows as window_rows
from scheduler.models import TimeWindow
from tests.builders import NOW

pytestmark = pytest.mark.django_db
State = TimeWindow.State


def requested(by: User, **changes: Any) -> TimeWindow:
    """Every day from 20:00 to 06:00, for who asks."""
    facts: dict[str, Any] = {
        "user": by,
        "days": [0, 1, 2, 3, 4, 5, 6],
        "start": time(20),
        "end": time(6),
        "zone": "UTC",
    }
    return window_rows.ask(TimeWindow(**(facts | changes)), by, NOW)


def decide(row: TimeWindow, state: TimeWindow.State = State.APPROVED) -> TimeWindow | None:
    return window_rows.decide(row.pk, state, "root", NOW, "fine")


def test_a_window_counts_once_it_is_approved(alice: User) -> None:
    row = requested(alice)
    assert window_rows.approved() == ()

    decide(row)

    (approved,) = window_rows.approved()
    assert (approved.holder, approved.members, approved.start) == ("alice", {"alice"}, time(20))


def test_a_declined_one_counts_no_more(alice: User) -> None:
    row = requested(alice)
    decide(row)

    decide(row, State.DECLINED)

    assert window_rows.approved() == ()


def test_what_is_decided_is_told_and_kept_on_record(alice: User) -> None:
    decide(requested(alice))

    assert [e.kind for e in events.recent(2)] == ["WINDOW_APPROVED", "WINDOW_ASKED"]
    entry = AuditEntry.objects.get(action="WINDOW_APPROVED")
    assert (entry.by, entry.before, entry.after) == (
        "root",
        {"state": "asked"},
        {"state": "approved"},
    )
    assert entry.text == "root approved alice's every day 20:00–06:00 (UTC): fine"


def test_deciding_twice_changes_nothing(alice: User) -> None:
    row = requested(alice)
    decide(row)

    assert decide(row) is None
    assert AuditEntry.objects.filter(action="WINDOW_APPROVED").count() == 1


def test_a_withdrawn_one_can_not_be_approved(alice: User) -> None:
    row = requested(alice)
    assert window_rows.withdraw(row.pk, alice, NOW)

    assert decide(row) is None
    assert not window_rows.withdraw(row.pk, alice, NOW)


def test_two_may_not_keep_more_than_a_whole_gpu(alice: User, bob: User) -> None:
    decide(requested(alice, share_pct=60))
    second = requested(bob, share_pct=50)

    with pytest.raises(window_rows.UnableToApprove, match="alice, every day 20:00"):
        decide(second)
    second.refresh_from_db()
    assert second.state == State.ASKED


def test_a_groups_members_are_those_of_now(alice: User, bob: User) -> None:
    lab = Group.objects.create(name="lab")
    lab.user_set.add(alice, bob)
    decide(requested(alice, user=None, group=lab))

    assert window_rows.approved()[0].members == {"alice", "bob"}
    lab.user_set.remove(bob)
    assert window_rows.approved()[0].members == {"alice"}


def test_who_asked_its_holder_and_operators_may_withdraw_it(
    alice: User, bob: User, root: User
) -> None:
    row = requested(root, user=alice)

    assert [window_rows.may_withdraw(row, person) for person in (alice, bob, root)] == [
        True,
        False,
        True,
    ]


def test_others_see_what_is_in_force_and_not_what_is_asked_for(alice: User, bob: User) -> None:
    row = requested(alice)
    every = tuple(State)

    assert not window_rows.seen_by(bob, *every).exists()
    assert window_rows.seen_by(alice, *every).exists()
    decide(row)
    assert window_rows.seen_by(bob, *every).exists()
