from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client

from scheduler import holding, outlook
from scheduler.models import Job
from tests import jobs_made
from tests.builders import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
AsUser = Callable[[User], Client]


def page(browser: Client, **query: str) -> str:
    response = browser.get("/jobs/", query)
    assert response.status_code == 200
    return response.content.decode()


def shown(html: str, *jobs: Job) -> list[bool]:
    return [f'id="job-{job.pk}"' in html for job in jobs]


def test_it_asks_to_log_in(client: Client) -> None:
    assert client.get("/jobs/")["Location"] == "/login/?next=/jobs/"


def test_a_server_without_jobs_says_what_to_do(alice: User, as_user: AsUser) -> None:
    html = page(as_user(alice))

    assert "No jobs yet." in html
    assert "gpucoord submit -- nvidia-smi" in html


def test_it_shows_what_runs_and_waits(alice: User, bob: User, as_user: AsUser) -> None:
    jobs = jobs_made.waiting(alice), jobs_made.running(bob), jobs_made.finished(alice)

    assert shown(page(as_user(alice)), *jobs) == [True, True, False]


def test_it_says_when_mine_is_served(alice: User, bob: User, as_user: AsUser) -> None:
    jobs_made.waiting(bob, priority=5)
    jobs_made.waiting(bob, at=NOW + timedelta(seconds=9))
    mine = jobs_made.waiting(alice)
    Job.objects.filter(pk=mine.pk).update(blockers=[{"code": "X", "text": "You ask for much."}])

    html = page(as_user(alice))

    assert "is number 2 of 3 in the queue" in html
    assert "You ask for much." in html


def test_a_held_job_is_not_the_next_one(alice: User, as_user: AsUser) -> None:
    held = jobs_made.waiting(alice, priority=5)
    assert holding.hold(held.pk, "alice", NOW)
    assert "can't be served yet" in page(as_user(alice))

    outlook.forget()
    jobs_made.waiting(alice, priority=1)
    assert "is served next" in page(as_user(alice))


def test_the_next_one_is_called_next(alice: User, as_user: AsUser) -> None:
    jobs_made.waiting(alice)

    assert "is served next" in page(as_user(alice))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"who": "mine"}, [True, False, False, False]),
        ({"state": "finished"}, [False, False, True, True]),
        ({"state": "failed"}, [False, False, False, True]),
        ({"state": "all"}, [True, True, True, True]),
        ({"state": "all", "q": "bob"}, [False, True, False, True]),
        ({"state": "nonsense", "page": "x"}, [True, True, False, False]),
    ],
)
def test_the_address_holds_the_view(
    alice: User, bob: User, as_user: AsUser, query: dict[str, str], expected: list[bool]
) -> None:
    jobs = (
        jobs_made.waiting(alice),
        jobs_made.running(bob),
        jobs_made.finished(alice),
        jobs_made.finished(bob, "failed", exit_code=1),
    )

    assert shown(page(as_user(alice), **query), *jobs) == expected


def test_it_finds_a_job_by_its_number(alice: User, as_user: AsUser) -> None:
    jobs = jobs_made.finished(alice), jobs_made.finished(alice)

    html = page(as_user(alice), state="all", q=f"job {jobs[0].pk}")

    assert shown(html, *jobs) == [True, False]


def test_many_jobs_come_in_pages(
    alice: User, as_user: AsUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.pages.job_table.PER_PAGE", 2)
    jobs = [jobs_made.finished(alice) for _ in range(3)]

    first = page(as_user(alice), state="finished")
    assert shown(first, *jobs) == [False, True, True]
    assert "?state=finished&amp;page=2" in first

    assert shown(page(as_user(alice), state="finished", page="2"), *jobs) == [True, False, False]


def test_an_empty_filter_offers_all_jobs(alice: User, as_user: AsUser) -> None:
    jobs_made.finished(alice)

    assert "Show all jobs" in page(as_user(alice))


def test_it_tells_no_commands(alice: User, bob: User, as_user: AsUser) -> None:
    jobs_made.waiting(alice, command="python secret.py", name="x")

    assert "secret" not in page(as_user(bob))


def test_its_cost_does_not_grow_with_the_jobs(
    alice: User, as_user: AsUser, django_assert_max_num_queries: Callable[[int], object]
) -> None:
    for _ in range(5):
        jobs_made.running(alice)

    browser = as_user(alice)

    with django_assert_max_num_queries(10):  # type: ignore[attr-defined]
        page(browser)
