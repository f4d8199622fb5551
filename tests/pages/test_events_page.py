from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.journal.pages import EventFilters
from monitor.journal.rows import events
from tests.builders import gpu_uuid

pytestmark = pytest.mark.django_db


@pytest.fixture
def page(alice: User, as_user: Callable[[User], Client]) -> Callable[..., str]:
    browser = as_user(alice)

    def get(**query: object) -> str:
        response = browser.get("/events/", query)
        assert response.status_code == 200
        return response.content.decode()

    return get


@pytest.fixture
def four() -> None:
    now = timezone.now()
    events.add("GPU_LOST", "GPU 1 fell", now=now, severity="error", gpu_uuid=gpu_uuid(1))
    events.add("DISK_SPACE_LOW", "Disk is short", now=now, severity="warning", host="gpubox")
    events.add("JOB_STARTED", "Job 7 began", now=now, job_ref="7", owner="bob")
    old = now - timedelta(days=2)
    events.add("GPU_FOUND", "GPU 1 came", now=old, gpu_uuid=gpu_uuid(1), owner="alice")


SHOWN = ("GPU 1 fell", "Disk is short", "Job 7 began", "GPU 1 came")


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({}, "1111"),
        ({"kind": "GPU_LOST"}, "1000"),
        ({"kind": "GPUs"}, "1001"),
        ({"severity": "error"}, "1000"),
        ({"severity": "warning"}, "1100"),
        ({"gpu": gpu_uuid(1)}, "1001"),
        ({"owner": "bob"}, "0010"),
        ({"job": "job #7"}, "0010"),
        ({"range": "24h"}, "1110"),
        ({"until": "2020-01-01T00:00"}, "0000"),
        ({"since": "2020-01-01T00:00", "owner": "alice"}, "0001"),
        ({"kind": "NONSENSE", "severity": "?", "page": "x", "since": "?"}, "1111"),
    ],
)
def test_the_address_says_which_events_are_shown(
    page: Callable[..., str], query: dict[str, str], wanted: str
) -> None:
    html = page(**query)

    assert "".join("1" if text in html else "0" for text in SHOWN) == wanted


def test_details_of_faults_are_for_operators(page: Callable[..., str]) -> None:
    events.add("LOOP_FAILED", "The sampler failed: /var/key", now=timezone.now())

    assert "The sampler failed" in (html := page())
    assert "/var/key" not in html


def test_the_first_page_is_live_and_an_older_one_stays_as_it_is(page: Callable[..., str]) -> None:
    now = timezone.now()
    for i in range(EventFilters.PER_PAGE + 1):
        events.add("GPU_FOUND", f"number {i}.", now=now - timedelta(seconds=i))

    first, second = page(), page(page="2")

    assert 'hx-trigger="every' in first
    assert 'hx-trigger="every' not in second
    assert f"number {EventFilters.PER_PAGE}." in second
    assert f"number {EventFilters.PER_PAGE}." not in first


def test_a_filtered_page_keeps_its_view_when_it_asks_again(page: Callable[..., str]) -> None:
    events.add("GPU_FOUND", "found", now=timezone.now())

    assert 'hx-get="/events/?kind=GPU_FOUND"' in page(kind="GPU_FOUND")


def test_an_empty_page_says_what_will_stand_there(page: Callable[..., str]) -> None:
    assert "No events yet" in page()
    assert "Show all events" in page(owner="nobody")


def test_events_that_differ_in_numbers_only_are_one_line_that_expands(
    page: Callable[..., str],
) -> None:
    now = timezone.now()
    for job in range(40, 44):
        text = f"Job {job} (whisper) started"
        events.add("JOB_STARTED", text, now=now + timedelta(seconds=job), owner="bob")
    events.add("JOB_STARTED", "Job 50 (train) started", now=now, owner="bob")
    html = page()

    assert html.count('<tr id="event-') == 2
    assert html.index("Job 43 (whisper) started") < html.index("3 more like this</summary>")
    hidden = html.split('<details id="like-')[1].split("</details>")[0]
    assert [f"Job {job} (whisper)" in hidden for job in range(40, 44)] == [True] * 3 + [False]


def test_two_alike_stay_alone_as_do_warnings(page: Callable[..., str]) -> None:
    now = timezone.now()
    for job in range(2):
        events.add("JOB_STARTED", f"Job {job} (whisper) started", now=now, owner="bob")
    for job in range(4):
        text = f"GPU {job} has been lost"
        events.add("GPU_LOST", text, now=now, severity="error", gpu_uuid=gpu_uuid(1))

    html = page()
    assert html.count('<tr id="event-') == 6
    assert "more like this" not in html
