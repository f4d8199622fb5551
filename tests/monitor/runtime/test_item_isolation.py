from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from itertools import pairwise

import psycopg
import pytest
from django.db import OperationalError, transaction

from monitor.journal.rows import events
from monitor.models import Event, ItemFault
from monitor.runtime.rows.item_isolation import FORGET_AFTER, LONGEST_RETRY, ItemIsolation
from monitor.runtime.rows.leases import LeaseLost
from tests.builders import NOW

pytestmark = pytest.mark.django_db


def at(second: float) -> datetime:
    return NOW + timedelta(seconds=second)


def isolation() -> ItemIsolation:
    return ItemIsolation("gpubox", "test")


def run(items: str, broken: str, now: datetime = NOW, used: ItemIsolation | None = None) -> str:
    """The items that worked. Each adds an event before the broken ones fail."""

    def action(item: str) -> str:
        events.add("DONE", item, now=now)
        if item in broken:
            raise ValueError(f"item {item} at {now}")
        return item

    with transaction.atomic():
        return "".join(item for item, _ in (used or isolation()).each(items, str, action, now))


def written() -> list[str]:
    return list(Event.objects.order_by("pk").values_list("text", flat=True))


@pytest.mark.parametrize("broken", ["a", "b", "c", "ac", "abc"])
def test_a_failing_item_is_rolled_back_and_the_others_are_written(broken: str) -> None:
    good = [item for item in "abc" if item not in broken]

    assert run("abc", broken) == "".join(good)
    assert written() == good


def test_a_fault_is_logged_once_across_processes_whatever_its_figures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for second in range(0, 60, 5):
        run("ab", "b", at(second))

    assert [(r.kind, r.part, r.item) for r in caplog.records if r.levelname == "ERROR"] == [
        ("ITEM_FAILED", "test", "b")
    ]


def test_a_fault_that_comes_back_after_a_success_is_logged_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run("b", "b", at(0))
    assert run("b", "", at(20)) == "b"
    assert not ItemFault.objects.exists()
    run("b", "b", at(40))

    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 2


def test_a_failing_item_is_tried_with_growing_delays_also_by_new_processes() -> None:
    tried = []
    for second in range(60):
        isolation().each(["x"], str, lambda _: tried.append(second) or 1 / 0, at(second))  # noqa: B023

    gaps = [later - earlier for earlier, later in pairwise(tried)]
    assert gaps[:3] == [1, 2, 4]
    assert set(gaps[4:]) == {LONGEST_RETRY.total_seconds()}


def test_a_clock_that_is_set_back_does_not_delay_the_next_try() -> None:
    run("b", "b", at(3600))

    assert run("b", "", at(0)) == "b"


def test_an_old_fault_of_an_item_that_has_gone_is_forgotten() -> None:
    used = isolation()
    run("b", "b", at(0), used)

    assert used.has_faults(at(1))
    assert not used.has_faults(NOW + FORGET_AFTER)


@pytest.mark.parametrize("error", [OperationalError("database is locked"), LeaseLost("sampler")])
def test_errors_of_the_whole_step_are_not_faults_of_an_item(error: Exception) -> None:
    def away(_item: str) -> None:
        raise error

    with pytest.raises(type(error)):
        isolation().each(["a"], str, away, NOW)
    assert not ItemFault.objects.exists()


def test_converting_leaves_out_only_the_items_that_cannot_be_converted() -> None:
    used = isolation()

    assert used.convert(["1", "x", "3"], str, int, NOW) == [("1", 1), ("3", 3)]
    assert used.convert(["1", "3"], str, int, NOW) == [("1", 1), ("3", 3)]


def test_pages_pass_over_a_failing_item_without_a_row_or_a_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    quiet = ItemIsolation("gpubox", "pages", reports=False)

    assert quiet.convert(["1", "x"], str, int, NOW) == [("1", 1)]
    assert not ItemFault.objects.exists()
    assert caplog.records == []


@pytest.mark.parametrize(
    ("cause", "concerns_item"),
    [
        (psycopg.errors.ProgramLimitExceeded("row is too big: size 9000"), True),
        (sqlite3.OperationalError("integer overflow"), True),
        (psycopg.errors.AdminShutdown("terminating connection"), False),
        (psycopg.errors.TooManyConnections("sorry, too many clients already"), False),
        (sqlite3.OperationalError("database is locked"), False),
        (sqlite3.OperationalError("disk I/O error"), False),
    ],
    ids=str,
)
def test_an_error_about_the_values_of_a_row_concerns_only_its_item(
    cause: Exception, concerns_item: bool
) -> None:
    def action(item: str) -> str:
        if item == "b":
            raise OperationalError(str(cause)) from cause
        return item

    if concerns_item:
        assert [item for item, _ in isolation().each("abc", str, action, NOW)] == ["a", "c"]
        assert [item for item, _ in isolation().convert("abc", str, action, NOW)] == ["a", "c"]
    else:
        with pytest.raises(OperationalError):
            isolation().each("abc", str, action, NOW)
        with pytest.raises(OperationalError):
            isolation().convert("abc", str, action, NOW)
