from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from monitor.facts.readings import Snapshot
from scheduler.jobs.pages import table
from scheduler.jobs.pages.table import Result
from tests import jobs_made
from tests.builders import gpu_uuid

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
AsUser = Callable[[User], Client]


def found(text: str) -> list[Result]:
    return list(table.find(text))


def test_it_finds_jobs_by_name_and_number_newest_first(alice: User) -> None:
    old, new = jobs_made.waiting(alice, name="train a"), jobs_made.waiting(alice, name="train b")

    assert [result.url for result in found("train")] == [f"/jobs/{new.pk}/", f"/jobs/{old.pk}/"]
    assert f"/jobs/{old.pk}/" in [result.url for result in found(f"job {old.pk}")]


def test_it_finds_users_and_gpus(alice: User, seen: Callable[..., Snapshot]) -> None:
    seen(2)

    assert Result("user", "alice", "/users/alice/") in found("ALI")
    assert [result.url for result in found("gpu 1") if result.kind == "GPU"] == [
        f"/gpus/{gpu_uuid(1)}/"
    ]


def test_it_lists_a_few_of_each_kind(alice: User) -> None:
    for _ in range(table.MOST_OF_A_KIND + 2):
        jobs_made.waiting(alice, name="sweep")

    assert len(found("sweep")) == table.MOST_OF_A_KIND


@pytest.mark.parametrize("text", ["", "9" * 40, "%", "x" * 500])
def test_odd_texts_find_nothing_and_break_nothing(text: str, alice: User, as_user: AsUser) -> None:
    answer = as_user(alice).get("/search/", {"q": text}, headers={"accept": "application/json"})

    assert answer.json() == {"results": []}


def test_without_javascript_it_is_a_page(alice: User, as_user: AsUser) -> None:
    job = jobs_made.waiting(alice, name="train")

    assert f'href="/jobs/{job.pk}/"' in as_user(alice).get("/search/?q=train").text
    assert "No job, user or GPU matches" in as_user(alice).get("/search/?q=zzz").text
