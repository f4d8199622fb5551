"""The page of a batch names its failed items first, with the end of their logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.contrib.auth.models import User

from scheduler.models import Batch
from tests import jobs_made
from tests.scheduler.submission.batches.test_batches import end_all, logged_in, step, submitted

pytestmark = pytest.mark.django_db


def failed(alice: User, data: Path, count: int) -> Batch:
    batch = submitted(alice, [f"input {number}" for number in range(count)])
    for second in range(count):
        step(second)
        for item in batch.items.filter(job__state="queued"):
            assert item.job is not None
            jobs_made.write_log(data, item.job, f"reading\nno module {item.index}\n".encode())
        end_all("failed", exit_code=7)
    step(count)
    return batch


def test_failed_items_come_first_with_their_last_lines(alice: User, data: Path) -> None:
    batch = failed(alice, data, 2)

    first, rest = logged_in(alice).get(f"/batches/{batch.pk}/").content.decode().split("<table")

    assert '<b>input 0</b> <span class="ending">failed: exit code 7</span>' in first
    assert '<pre class="code">reading\nno module 0</pre>' in first
    assert "input 1" in rest
    assert "no module" not in rest


def test_failed_items_beyond_the_first_are_one_click_away(alice: User, data: Path) -> None:
    batch = failed(alice, data, 6)

    page = logged_in(alice).get(f"/batches/{batch.pk}/").content.decode()

    assert page.count('<pre class="code">') == 5
    assert '<a href="?status=failed">All 6 failed items</a>' in page


def test_a_failed_item_without_a_log_is_named(alice: User, data: Path) -> None:
    batch = submitted(alice, ["input 0"])
    step()
    end_all("failed", exit_code=7)
    step(1)

    page = logged_in(alice).get(f"/batches/{batch.pk}/").content.decode()

    assert "<b>input 0</b>" in page
    assert '<pre class="code">' not in page
