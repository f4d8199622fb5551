"""Prompts by REST: who may send, see and cancel them, and what happens to those that can't end."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.pages.metrics import Families
from scheduler.facts.language_models import MOST_ATTEMPTS, MOST_RESTARTS
from scheduler.language_models.model_services import steps
from scheduler.language_models.prompts import metrics, rows
from scheduler.models import ModelService, ModelUse, Prompt, Quota
from tests.builders import NOW

pytestmark = pytest.mark.django_db
AsUser = Callable[[User], Client]
HELLO = {"model": "small", "prompt": "hello", "type": "parse"}


@pytest.fixture
def small() -> ModelService:
    return ModelService.objects.create(name="small", argv=["serve", "{port}"])


def post(client: Client, **changes: Any) -> Any:
    body = {name: value for name, value in (HELLO | changes).items() if value is not None}
    return client.post("/api/prompts/", json.dumps(body), content_type="application/json")


def prompt_of(owner: User, **values: object) -> Prompt:
    fixed: dict[str, object] = {
        "model": "small", "type": "parse", "priority": 3, "created_at": NOW,
        "messages": [{"role": "user", "content": "secret"}],
    }  # fmt: skip
    return Prompt.objects.create(owner=owner, **(fixed | values))


def test_a_prompt_is_stored_before_it_is_acknowledged(
    small: ModelService, alice: User, as_user: AsUser
) -> None:
    answer = post(as_user(alice), priority=4, parameters={"temperature": 0.5})

    assert answer.status_code == 201, answer.content
    row = Prompt.objects.get(pk=answer.json()["id"])
    assert (row.owner, row.status, row.type, row.priority) == (alice, "queued", "parse", 4)
    assert row.messages == [{"role": "user", "content": "hello"}]
    assert row.parameters == {"temperature": 0.5}


def test_only_the_owner_sees_the_texts(
    small: ModelService, alice: User, bob: User, root: User, as_user: AsUser
) -> None:
    row = prompt_of(alice, result="answer", error="reason")
    own, operator = (as_user(user).get(f"/api/prompts/{row.pk}/") for user in (alice, root))

    assert own.json()["messages"][0]["content"] == "secret"
    names = ("messages", "parameters", "result", "error")
    assert [operator.json()[name] for name in names] == [None] * 4
    assert as_user(bob).get(f"/api/prompts/{row.pk}/").status_code == 403
    assert as_user(bob).get("/api/prompts/").json()["prompts"] == []
    assert [one["id"] for one in as_user(root).get("/api/prompts/").json()["prompts"]] == [row.pk]


def test_the_list_of_prompts_is_filtered(small: ModelService, alice: User, as_user: AsUser) -> None:
    first, second = prompt_of(alice), prompt_of(alice, status="complete", model="other")

    def listed(query: str) -> list[int]:
        answer = as_user(alice).get(f"/api/prompts/?{query}")
        assert answer.status_code == 200, answer.content
        return [one["id"] for one in answer.json()["prompts"]]

    assert listed("limit=1") == listed("status=complete") == listed("model=other") == [second.pk]
    assert listed(f"before={second.pk}") == [first.pk]
    assert as_user(alice).get("/api/prompts/?filters=1").status_code == 422


def test_the_page_of_metrics_has_those_of_models_and_prompts(
    small: ModelService, root: User, as_user: AsUser
) -> None:
    prompt_of(root)
    text = as_user(root).get("/metrics").content.decode()

    assert 'gpucoord_prompts{model="small",status="queued"} 1.0' in text


def test_only_the_owner_and_operators_cancel_a_prompt(
    small: ModelService, alice: User, bob: User, root: User, as_user: AsUser
) -> None:
    row = prompt_of(alice)

    assert as_user(bob).post(f"/api/prompts/{row.pk}/cancel/").status_code == 403
    assert as_user(root).post(f"/api/prompts/{row.pk}/cancel/").json() == {"cancelled": True}
    assert as_user(alice).post(f"/api/prompts/{row.pk}/cancel/").json() == {"cancelled": False}
    row.refresh_from_db()
    assert (row.status, row.error) == ("failed", "Cancelled by root.")


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"model": "other"}, 404),
        ({"prompt": None}, 422),
        ({"messages": [{"role": "user", "content": "x"}]}, 422),
        ({"prompt": None, "messages": []}, 422),
        ({"prompt": None, "messages": [{"role": "tool", "content": "x"}]}, 422),
        ({"prompt": "a\x00b"}, 422),
        ({"prompt": " \n"}, 422),
        ({"priority": 6}, 422),
        ({"type": "sing"}, 422),
        ({"parameters": {"x": "y" * 70_000}}, 422),
        ({"prompt": "x" * 1_000_001}, 422),
    ],
)
def test_a_prompt_that_cannot_be_answered_is_refused(
    small: ModelService, alice: User, as_user: AsUser, changes: dict[str, Any], status: int
) -> None:
    assert post(as_user(alice), **changes).status_code == status
    assert not Prompt.objects.exists()


def test_the_texts_of_all_messages_together_are_bounded(
    small: ModelService, alice: User, as_user: AsUser
) -> None:
    long = [{"role": "user", "content": "x" * 600_000}] * 2
    answer = post(as_user(alice), prompt=None, messages=long)

    assert answer.status_code == 422
    assert "together" in answer.content.decode()


@pytest.mark.parametrize(
    ("quota", "sentence"),
    [
        ({"prompts": 3}, "your quota allows 3 a day"),
        ({"prompt_tokens": 70}, "your quota allows 70 a day"),
    ],
)
def test_the_quota_of_a_day_counts_requests_and_tokens(
    small: ModelService, alice: User, as_user: AsUser, quota: dict[str, int], sentence: str
) -> None:
    Quota.objects.create(user=alice, **quota)
    use = {"model": "small", "owner": "alice", "requests": 2, "prompt_tokens": 30}
    ModelUse.objects.create(hour_at=timezone.now(), completion_tokens=39, **use)
    assert post(as_user(alice)).status_code == 201

    ModelUse.objects.update(requests=3, completion_tokens=40)
    refused = post(as_user(alice))

    assert refused.status_code == 429
    assert sentence in refused.json()["detail"]


def test_the_texts_of_a_users_waiting_prompts_are_bounded_together(
    small: ModelService, alice: User, bob: User, as_user: AsUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "WAITING_MIB", 1)
    text = "x" * 400_000
    assert [post(as_user(alice), prompt=text).status_code for _ in range(2)] == [201, 201]
    refused = post(as_user(alice), prompt=text)

    assert refused.status_code == 429
    assert "0.8 MiB, and this one 0.4 MiB; 1 MiB is the most" in refused.json()["detail"]
    assert post(as_user(bob), prompt=text).status_code == 201
    # Prompts that do not wait any more leave room.
    Prompt.objects.filter(owner=alice).update(status="complete")
    assert post(as_user(alice), prompt=text).status_code == 201


def test_a_prompt_larger_than_all_waiting_ones_may_be_is_invalid_except_for_operators(
    small: ModelService, alice: User, root: User, as_user: AsUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "WAITING_MIB", 1)
    # As JSON in ASCII, each of these characters has six bytes.
    text = "\u00e4" * 200_000
    refused = post(as_user(alice), prompt=text)

    assert refused.status_code == 422
    assert "This prompt has 1.1 MiB" in refused.content.decode()
    assert [post(as_user(root), prompt=text).status_code for _ in range(2)] == [201, 201]


def test_a_priority_above_the_quota_is_refused(
    small: ModelService, alice: User, as_user: AsUser
) -> None:
    Quota.objects.create(user=alice, priority=2)

    assert post(as_user(alice), priority=3).status_code == 422
    assert post(as_user(alice), priority=2).status_code == 201


def test_a_removed_service_fails_its_open_prompts_with_the_reason(
    small: ModelService, alice: User, root: User
) -> None:
    waiting, running = prompt_of(alice), prompt_of(alice, status="running", attempt=1)
    complete, other = prompt_of(alice, status="complete"), prompt_of(alice, model="other")

    steps.remove(small, root, NOW)

    ended = [Prompt.objects.get(pk=row.pk) for row in (waiting, running)]
    assert [(row.status, row.error) for row in ended] == [
        ("failed", "root removed the model small.")
    ] * 2
    assert [Prompt.objects.get(pk=row.pk).status for row in (complete, other)] == [
        "complete", "queued",
    ]  # fmt: skip


def test_the_name_of_a_service_stays(small: ModelService, root: User) -> None:
    with pytest.raises(steps.InvalidService, match="can't be changed"):
        steps.change(small, {"name": "large"}, root, NOW)


def test_a_look_at_the_queue_reads_no_texts(alice: User, bob: User) -> None:
    for number in range(6):
        prompt_of(alice, priority=1 + number % 5)
    prompt_of(bob)

    listed = rows.waiting(4)

    assert [row.priority for row in listed if row.owner == alice] == [5, 4]
    assert [row.owner for row in listed].count(bob) == 1
    assert all({"messages", "parameters", "result"} <= row.get_deferred_fields() for row in listed)
    assert rows.texts(listed[0].pk).messages[0]["content"] == "secret"


def test_restarts_of_gpucoord_count_less_than_failures_of_instances(alice: User) -> None:
    row = prompt_of(alice, status="running", attempt=MOST_ATTEMPTS, host="here", worker="killed")

    assert rows.recover("here", "next", [], NOW) == 1
    row.refresh_from_db()
    assert (row.status, row.started_at) == ("queued", None)

    Prompt.objects.update(status="running", attempt=MOST_RESTARTS)
    rows.recover("here", "next", [], NOW)
    row.refresh_from_db()
    assert row.status == "failed"
    assert row.error.startswith("gpucoord was restarted")


def test_prompts_of_other_hosts_and_those_in_hand_are_not_recovered(alice: User) -> None:
    for host, worker in (("there", "killed"), ("here", "me")):
        prompt_of(alice, status="running", attempt=1, host=host, worker=worker)
    mine = Prompt.objects.get(worker="me")

    assert rows.recover("here", "me", [mine.pk], NOW) == 0
    assert rows.recover("here", "me", [], NOW) == 1


def test_metrics_count_prompts_and_requests(small: ModelService, alice: User) -> None:
    prompt_of(alice, created_at=NOW - timedelta(seconds=90))
    prompt_of(alice, status="running")
    ModelUse.objects.create(
        hour_at=NOW, model="small", owner="alice", requests=5, failed=1, completion_tokens=40
    )
    families = Families()
    metrics.add_metrics(families, NOW)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families.collect()
        for sample in family.samples
    }

    assert samples["gpucoord_prompts", "small", "queued"] == 1
    assert samples["gpucoord_prompts", "small", "running"] == 1
    assert samples["gpucoord_prompts_oldest_wait_seconds", "small"] == 90
    assert samples["gpucoord_model_requests_total", "small"] == 5
    assert samples["gpucoord_model_requests_failed_total", "small"] == 1


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("model", ["small"], "Write a text."),
        ("prompt", 5, "Write a text."),
        ("type", "sing", "Write one of 'parse', 'transform', 'generate', 'execute' or 'decide'."),
        ("priority", "high", "Write a whole number."),
        ("priority", 6, "It must be at most 5."),
        ("messages", "hello", "Write a list."),
        ("parameters", [], "Write an object."),
    ],
)
def test_mistakes_in_a_prompt_are_explained(
    small: ModelService, alice: User, as_user: AsUser, field: str, value: object, sentence: str
) -> None:
    (mistake,) = post(as_user(alice), **{field: value}).json()["errors"]

    assert mistake == {"field": field, "message": sentence}
