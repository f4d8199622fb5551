"""The three sentences that a report begins with."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from msgspec.structs import replace

from monitor.owners.policy import Viewer
from reports.figures.actions import build
from reports.figures.facts import (
    BlockerFigures,
    Costs,
    GpuHours,
    Report,
    Scope,
    Totals,
    UserFigures,
    Violation,
)
from reports.figures.policy import periods
from reports.render import wording as text
from reports.render.wording import cell
from tests.builders import NOW
from tests.reports.made import contended, ran, share_of_all, watched_gpu

PERIOD = periods.parse("24h", "", "", "UTC", NOW)
BEGIN = NOW - timedelta(hours=24)
HOURS = GpuHours(capacity=200, used=100, idle_held=50, booked_empty=6, free=44)


def report(waited: float = 0.0, waited_idle: float = 0.0, **changes: Any) -> Report:
    totals = Totals(
        gpus=8, gpu_hours=HOURS, people=HOURS, waited_hours=waited, waited_idle_hours=waited_idle,
        energy_kwh=None, idle_energy_kwh=None, costs=Costs(),
    )  # fmt: skip
    whole = Report(period=PERIOD, scope=Scope(), made_at=NOW, totals=totals, coverage_pct=100.0,
                   least_coverage_pct=80.0)  # fmt: skip
    return replace(whole, **changes)


def violation(user: str) -> Violation:
    return Violation(
        program="python", pid=1, user=user, processes=1, hours=8, above_pct=90, expected_pct=30,
        mean_pct=95, coverage=1, waited_hours=4, gpus=("GPU 0",),
    )  # fmt: skip


def test_the_users_with_most_unused_hours_are_named_with_what_they_held() -> None:
    users = (
        UserFigures(user="alice", held=40, idle_held=4),
        UserFigures(user="erin", held=50, idle_held=40, unknown=2),
        UserFigures(user="bob", held=60, idle_held=5, booked_empty=6),
        UserFigures(user="dana", held=6, idle_held=1),
    )

    assert text.sentences(report(users=users))[1] == (
        "56.0 of 156 GPU-hours held were not used; largest: erin 40.0 of 48.0,"
        " bob 6.00 of 60.0 (booked without a process), bob 5.00 of 60.0."
    )


def test_hours_that_hardly_matter_name_no_user() -> None:
    users = (UserFigures(user="alice", held=156, idle_held=1.5),)

    assert text.sentences(report(users=users))[1] == ("56.0 of 156 GPU-hours held were not used.")


def above(user: str, caused: float, **changes: Any) -> UserFigures:
    figures: dict[str, Any] = {"share_pct": 43.21, "entitled_pct": 30.0, "coverage": 1.0}
    return UserFigures(user=user, caused_wait_hours=caused, **(figures | changes))


def test_users_above_their_entitlement_are_named_with_the_wait_that_each_caused() -> None:
    users = (
        above("erin", 8.7),
        above("alice", 12.5),
        above("charlie", 0.1),
        above("dana", 9.0, share_pct=29.0),
        above("frank", 9.0, coverage=0.5),
        above("bob", 3.0, coverage=0.5),
    )

    sentence = text.sentences(report(users=users, violations=(violation("bob"),)))[0]

    assert sentence == (
        "alice held 43.2 % of the GPU time, more than the entitlement of 30.0 %, and jobs of others"
        " waited 12.5 h for it. So did erin (8.70 h), bob (3.00 h)."
    )


def test_a_fair_period_is_told_as_one() -> None:
    users = (above("erin", 0.1), above("dana", 9.0, share_pct=None))

    assert text.sentences(report(users=users))[0] == (
        "No user made others wait by more than the entitlement."
    )


def test_waits_are_told_with_the_blocker_that_cost_most() -> None:
    blockers = (
        BlockerFigures(blocker="GpuTaken", jobs=9, p50_s=1, p90_s=1, waited_hours=1),
        BlockerFigures(blocker="GpuMemory", jobs=1, p50_s=1, p90_s=1, waited_hours=3),
    )
    made = report(4.0, 2.0, blockers=blockers)

    assert text.sentences(made)[2] == (
        "Jobs waited 4.00 h, up to 2.00 h of them while held GPUs stood idle."
        " Main blocker: too little free GPU memory."
    )


def test_an_empty_report_says_nothing() -> None:
    nothing = replace(report().totals, gpu_hours=GpuHours(capacity=10, unknown=10))

    assert text.sentences(report(totals=nothing)) == ()


@pytest.mark.django_db
def test_the_period_before_is_compared_only_if_it_was_recorded_as_a_whole(bob: User) -> None:
    def before(since: timedelta) -> float | None:
        gpu = watched_gpu(NOW - since, NOW, len(seen))
        seen.append(gpu)
        ran(gpu, NOW - timedelta(hours=30), 5, pid=100 + len(seen))
        made = build(PERIOD, Scope(), Viewer("root", operator=True), NOW)
        return made.totals.used_before

    seen: list[Any] = []

    assert before(timedelta(hours=47)) is None
    seen[0].first_seen_at = NOW - timedelta(hours=49)
    seen[0].save()
    assert before(timedelta(hours=49)) == pytest.approx(2 * 5 * 0.95)


@pytest.mark.django_db
def test_the_sentences_begin_the_text_of_a_report(bob: User) -> None:
    share_of_all(30)
    contended(bob, BEGIN)
    ran(watched_gpu(BEGIN, NOW), BEGIN, 8)
    made = build(PERIOD, Scope(), Viewer("root", operator=True), NOW)

    shown = text.text(made)
    first = text.sentences(made)
    assert first[0].startswith("alice held ")
    assert shown.index(first[0]) < shown.index(first[2]) < shown.index("Users:")


def test_a_small_figure_is_not_printed_as_zero() -> None:
    assert [cell(value) for value in (0.0, 0.004, 0.0123, None)] == ["0", "<0.01", "0.012", "–"]
