"""The form on a model's page, the fragment with the answer, and the queue on the dashboard."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from scheduler.language_models.prompts import rows
from scheduler.models import ModelService, ModelUse, Prompt, Quota

pytestmark = pytest.mark.django_db
AsUser = Callable[[User], Client]
FORM = {"prompt": "Find <b>dates</b>", "type": "parse", "priority": "4"}


@pytest.fixture
def small() -> ModelService:
    return ModelService.objects.create(name="small", argv=["serve", "{port}"])


def prompt_of(owner: User, **values: object) -> Prompt:
    fixed: dict[str, object] = {"model": "small", "type": "parse", "priority": 3, "messages": []}
    return Prompt.objects.create(owner=owner, created_at=timezone.now(), **(fixed | values))


def test_the_form_queues_a_prompt_and_shows_its_answer(
    small: ModelService, alice: User, as_user: AsUser
) -> None:
    browser = as_user(alice)

    page = browser.post("/models/small/prompt/", FORM, follow=True).content.decode()

    row = Prompt.objects.get()
    assert (row.owner, row.type, row.priority) == (alice, "parse", 4)
    assert row.messages == [{"role": "user", "content": "Find <b>dates</b>"}]
    assert f'hx-get="/prompts/{row.pk}/answer/"' in page
    Prompt.objects.update(status="complete", result="<i>May</i>", finished_at=timezone.now())
    answer = browser.get(f"/prompts/{row.pk}/answer/").content.decode()
    assert "&lt;i&gt;May&lt;/i&gt;" in answer
    # It polls no more.
    assert "hx-get" not in answer


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompt": " "}, "Write a prompt."),
        ({"prompt": "x" * 100_001}, "at most 100000 characters"),
        ({"type": "sing"}, "Choose a type"),
        ({"priority": "9"}, "Choose a type and a priority"),
    ],
)
def test_a_form_that_cannot_be_sent_says_why(
    small: ModelService, alice: User, as_user: AsUser, change: dict[str, str], sentence: str
) -> None:
    page = as_user(alice).post("/models/small/prompt/", FORM | change, follow=True)

    assert sentence in page.content.decode()
    assert not Prompt.objects.exists()


def test_other_users_see_no_answer(
    small: ModelService, alice: User, bob: User, as_user: AsUser
) -> None:
    row = prompt_of(alice, result="secret")

    assert as_user(bob).get(f"/prompts/{row.pk}/answer/").status_code == 404
    assert "secret" not in as_user(bob).get(f"/models/small/?prompt={row.pk}").content.decode()


def test_the_page_of_a_model_shows_its_queue_of_prompts(
    small: ModelService, alice: User, as_user: AsUser
) -> None:
    prompt_of(alice, status="running")
    prompt_of(alice, waits_for="model boots, ready in ~85 s, position 1")

    html = as_user(alice).get("/models/small/").content.decode()

    assert "1 prompt running · 1 waiting" in html
    assert "model boots, ready in ~85 s, position 1" in html


def test_the_page_shows_hit_rates_and_the_time_to_the_first_token(
    small: ModelService, alice: User, as_user: AsUser
) -> None:
    ModelUse.objects.create(
        hour_at=timezone.now().replace(minute=0, second=0, microsecond=0), model="small",
        owner="alice", requests=11, failed=1, warm=2, cold=1, prompt_tokens=70,
        completion_tokens=30, first_token_s=5.0,
    )  # fmt: skip

    html = as_user(alice).get("/models/small/").content.decode()

    assert "hot 70 % · warm 20 % · cold 10 %" in html
    assert "0.50 s on average" in html
    assert "11, 1 without an answer" in html
    use = as_user(alice).get("/api/models/small/").json()["use"]
    assert (use["hot"], use["first_token_s"]) == (7, 0.5)


def test_old_use_does_not_count(small: ModelService) -> None:
    ModelUse.objects.create(
        hour_at=timezone.now() - timedelta(days=2), model="small", owner="alice", requests=5
    )

    assert rows.summary("small", timezone.now() - timedelta(hours=24)).requests == 0


def test_the_shares_page_tells_use_and_quota_of_models(alice: User, as_user: AsUser) -> None:
    assert "Models today" not in as_user(alice).get("/shares/").content.decode()

    Quota.objects.create(user=alice, prompts=100)
    ModelUse.objects.create(
        hour_at=timezone.now(), model="small", owner=alice.username, requests=5, prompt_tokens=70
    )

    html = as_user(alice).get("/shares/").content.decode()
    assert "Models today: 5 of 100 requests, 70 tokens." in html
