from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client

from scheduler.dispatch.steps import preview
from scheduler.jobs.rows import changes as job_changes
from scheduler.models import Batch, BatchItem, Job, SavedView
from scheduler.queue.planner.forecasts import Estimate
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
    assert "gpucoord submit -- echo Hello from a job" in html


def test_it_shows_what_runs_and_waits(alice: User, bob: User, as_user: AsUser) -> None:
    jobs = jobs_made.waiting(alice), jobs_made.running(bob), jobs_made.finished(alice)

    assert shown(page(as_user(alice)), *jobs) == [True, True, False]


def test_jobs_of_an_array_are_one_line_that_leads_to_them(
    alice: User, bob: User, as_user: AsUser
) -> None:
    first, second = jobs_made.running(alice, name="sweep"), jobs_made.waiting(alice, name="sweep")
    alone = jobs_made.waiting(alice)
    Job.objects.filter(pk__in=[first.pk, second.pk]).update(array=first.pk)
    html = page(as_user(alice))

    assert shown(html, first, second, alone) == [False, False, True]
    assert f'href="/jobs/?q=array+{first.pk}" title="sweep"' in html
    assert "<b>0</b> of 2" in html
    assert shown(page(as_user(alice), q=f"array {first.pk}"), first, second) == [True, True]
    assert shown(page(as_user(alice), sort="job"), first, second) == [True, True]
    assert 'title="sweep"' not in page(as_user(bob), who="mine")


def test_items_of_a_running_batch_are_one_line(alice: User, as_user: AsUser) -> None:
    item, alone = jobs_made.running(alice), jobs_made.waiting(alice)
    batch = Batch.objects.create(owner=alice, name="whisper", total_items=9, created_at=NOW)
    BatchItem.objects.create(batch=batch, index=0, input="a", job=item)
    html = page(as_user(alice))

    assert shown(html, item, alone) == [False, True]
    assert f'href="/batches/{batch.pk}/" title="whisper"' in html


def test_ended_items_of_a_batch_are_one_line_that_leads_to_it(alice: User, as_user: AsUser) -> None:
    older, newer, alone = (jobs_made.finished(alice) for _ in range(3))
    batch = Batch.objects.create(owner=alice, name="whisper", total_items=9, created_at=NOW)
    for index, job in enumerate((older, newer)):
        BatchItem.objects.create(batch=batch, index=index, input="a", job=job)
    html = page(as_user(alice), state="finished")

    assert shown(html, older, newer, alone) == [False, True, True]
    assert f'href="/batches/{batch.pk}/">2 jobs</a>' in html
    assert shown(page(as_user(alice), state="finished", sort="job"), older, newer) == [True, True]


def test_ended_jobs_of_an_array_are_one_line_that_leads_to_them(
    alice: User, as_user: AsUser
) -> None:
    older, newer = jobs_made.finished(alice), jobs_made.finished(alice)
    Job.objects.filter(pk__in=[older.pk, newer.pk]).update(array=older.pk)
    html = page(as_user(alice), state="finished")
    there = f"state=finished&amp;q=array+{older.pk}"

    assert shown(html, older, newer) == [False, True]
    assert f'{there}">2 jobs</a>' in html
    assert shown(page(as_user(alice), state="finished", q=f"array {older.pk}"), older, newer) == [
        True,
        True,
    ]


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
    assert job_changes.hold_job(held.pk, "alice", NOW)
    assert "can't start yet" in page(as_user(alice))

    preview.forget()
    jobs_made.waiting(alice, priority=1)
    assert "is next" in page(as_user(alice))


def test_the_next_one_is_called_next(alice: User, as_user: AsUser) -> None:
    jobs_made.waiting(alice)

    assert "is next" in page(as_user(alice))


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
    monkeypatch.setattr("scheduler.jobs.pages.table.PER_PAGE", 2)
    jobs = [jobs_made.finished(alice) for _ in range(3)]

    first = page(as_user(alice), state="finished")
    assert shown(first, *jobs) == [False, True, True]
    assert "?state=finished&amp;page=2" in first

    assert shown(page(as_user(alice), state="finished", page="2"), *jobs) == [True, False, False]


def test_an_empty_filter_offers_all_jobs(alice: User, as_user: AsUser) -> None:
    jobs_made.finished(alice)

    assert "Show all jobs" in page(as_user(alice))


def test_it_shows_no_commands(alice: User, bob: User, as_user: AsUser) -> None:
    jobs_made.waiting(alice, command="python secret.py", name="x")

    assert "secret" not in page(as_user(bob))


def test_its_cost_does_not_grow_with_the_jobs(
    alice: User, as_user: AsUser, django_assert_max_num_queries: Callable[[int], object]
) -> None:
    for _ in range(5):
        jobs_made.running(alice)

    browser = as_user(alice)

    # One of them asks for arrays.
    with django_assert_max_num_queries(11):  # type: ignore[attr-defined]
        page(browser)


def order(html: str) -> list[int]:
    return [int(pk) for pk in re.findall(r'id="job-(\d+)"', html)]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("job", [0, 1, 2]),
        ("-job", [2, 1, 0]),
        ("-priority", [1, 2, 0]),
        ("owner", [0, 2, 1]),
        ("-submitted", [0, 2, 1]),
    ],
)
def test_the_address_sorts_the_list(
    sort: str, expected: list[int], alice: User, bob: User, as_user: AsUser
) -> None:
    jobs = [
        jobs_made.waiting(alice, at=NOW + timedelta(seconds=9), priority=1),
        jobs_made.waiting(bob, priority=4),
        jobs_made.waiting(alice, at=NOW + timedelta(seconds=5), priority=2),
    ]

    assert order(page(as_user(alice), sort=sort)) == [jobs[i].pk for i in expected]


def test_jobs_without_a_run_time_come_last_in_both_directions(alice: User, as_user: AsUser) -> None:
    never = jobs_made.waiting(alice)
    runs = jobs_made.running(alice)

    for sort in ("took", "-took"):
        assert order(page(as_user(alice), sort=sort)) == [runs.pk, never.pk]


def test_an_unknown_sort_key_is_ignored_and_a_known_one_stays_in_the_links(
    alice: User, as_user: AsUser
) -> None:
    jobs_made.waiting(alice)

    assert page(as_user(alice), sort="password")
    assert "?who=mine&amp;sort=-priority" in page(as_user(alice), sort="-priority")


def test_a_waiting_job_shows_its_expected_start(
    alice: User, as_user: AsUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = jobs_made.waiting(alice)
    soon = Estimate(position=1, p50=NOW + timedelta(minutes=4), p90=None)
    monkeypatch.setattr(preview, "estimates", lambda now: {job.pk: soon})
    html = page(as_user(alice))

    assert 'datetime="2026-03-02T12:04:00+00:00"' in html.split("<tbody>")[1]


def test_a_job_far_back_is_shown_after_the_last_predicted_start(
    alice: User, as_user: AsUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = jobs_made.waiting(alice)
    later = Estimate(position=500, p50=None, p90=None, after=NOW + timedelta(hours=4))
    monkeypatch.setattr(preview, "estimates", lambda now: {job.pk: later})
    row = page(as_user(alice)).split("<tbody>")[1]

    assert "after" in row
    assert 'datetime="2026-03-02T16:00:00+00:00"' in row


def change(browser: Client, action: str, *jobs: Job, **more: str) -> str:
    fields = {"action": action, "job": [job.pk for job in jobs], **more}
    return browser.post("/jobs/bulk/", fields, follow=True).content.decode()


def test_selected_jobs_are_held_and_released_at_once(alice: User, as_user: AsUser) -> None:
    jobs = [jobs_made.waiting(alice) for _ in range(3)]
    browser = as_user(alice)

    assert "Held 2 jobs." in change(browser, "hold", *jobs[:2])
    assert [bool(job.held) for job in Job.objects.order_by("pk")] == [True, True, False]
    assert "Released 2 jobs. 1 could not be changed" in change(browser, "release", *jobs)


def test_cancelling_selected_jobs_asks_first(alice: User, as_user: AsUser) -> None:
    jobs = [jobs_made.waiting(alice) for _ in range(2)]
    browser = as_user(alice)

    assert "Cancel 2 jobs?" in change(browser, "cancel", *jobs)
    assert Job.objects.filter(outcome="cancelled").count() == 0
    assert "Cancelled 2 jobs." in change(browser, "cancel", *jobs, sure="1")
    assert Job.objects.filter(outcome="cancelled").count() == 2


def test_jobs_of_other_users_are_not_changed(alice: User, bob: User, as_user: AsUser) -> None:
    theirs = jobs_made.waiting(bob)
    browser = as_user(alice)

    assert f'value="{theirs.pk}" aria-label' not in page(browser)
    assert "Held 0 jobs. 1 could not be changed" in change(browser, "hold", theirs)
    assert "No jobs to cancel" in change(browser, "cancel", theirs)


def test_a_bulk_change_leads_back_to_the_view_and_nowhere_else(
    alice: User, as_user: AsUser
) -> None:
    browser = as_user(alice)
    fields = {"action": "hold", "job": [jobs_made.waiting(alice).pk]}

    kept = browser.post("/jobs/bulk/", {**fields, "view": "?state=all"})
    outside = browser.post("/jobs/bulk/", {**fields, "view": "//evil.example/"})

    assert (kept["Location"], outside["Location"]) == ("/jobs/?state=all", "/jobs/")


def test_unknown_bulk_actions_and_too_many_jobs_are_refused(alice: User, as_user: AsUser) -> None:
    browser = as_user(alice)
    job = jobs_made.waiting(alice)
    crowd = browser.post("/jobs/bulk/", {"action": "hold", "job": list(range(201))}, follow=True)

    assert "at most 200 jobs" in change(browser, "delete", job)
    assert "at most 200 jobs" in crowd.content.decode()
    assert not Job.objects.get(pk=job.pk).held


def save_view(browser: Client, name: str, query: str) -> str:
    sent = browser.post("/jobs/views/", {"name": name, "query": query}, follow=True)
    return str(sent.content.decode())


def test_a_user_saves_and_removes_a_view_and_others_do_not_see_it(
    alice: User, bob: User, as_user: AsUser
) -> None:
    browser = as_user(alice)
    page = save_view(browser, "my failures", "?who=mine&state=failed&sort=-job")
    chip = '<a class="chip" href="/jobs/?who=mine&amp;state=failed&amp;sort=-job"'
    assert f'{chip} aria-current="page">my failures</a>' in page
    assert chip in browser.get("/jobs/").content.decode()
    assert "my failures" not in as_user(bob).get("/jobs/").content.decode()

    as_user(bob).post("/jobs/views/remove/", {"query": "?who=mine&state=failed&sort=-job"})
    assert SavedView.objects.count() == 1
    browser.post("/jobs/views/remove/", {"query": "?who=mine&state=failed&sort=-job"})
    assert not SavedView.objects.exists()


@pytest.mark.parametrize(
    ("name", "query", "saved"),
    [
        ("a", "javascript:alert(1)", None),
        ("a", "//evil.example/?who=mine", None),
        ("a", "?who=mine&next=//evil.example&state=nonsense", "?who=mine"),
        ("a", "?q=%22%3E%3Cscript%3E&who=mine", "?who=mine&q=%22%3E%3Cscript%3E"),
        ("a", "?", None),
        ("", "?who=mine", None),
        ("\u202eedoc", "?who=mine", None),
    ],
)
def test_only_names_and_filters_that_exist_are_saved(
    name: str, query: str, saved: str | None, alice: User, as_user: AsUser
) -> None:
    page = save_view(as_user(alice), name, query)

    assert list(SavedView.objects.values_list("query", flat=True)) == ([saved] if saved else [])
    assert "<script>" not in page


def test_saved_views_are_limited(alice: User, as_user: AsUser) -> None:
    browser = as_user(alice)
    for number in range(13):
        page = save_view(browser, f"view {number}", f"?q=run{number}")

    assert SavedView.objects.count() == 12
    assert "You have 12 saved views. Remove one first." in page
