"""The form for a new batch: the arguments of its script, the request of each item, its check."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from scheduler.models import Batch, ScriptDefinition
from scheduler.submission.batches.step import jobs_of
from tests.scheduler.submission.batches.test_batches import logged_in

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _script() -> None:
    rules: dict[str, Any] = {
        "file": {"type": "string", "title": "Recording", "pattern": "^/"},
        "n": {"type": "integer", "minimum": 1, "maximum": 9, "examples": [3]},
    }
    schema = {"type": "object", "properties": rules, "required": ["file", "n"]}
    ScriptDefinition.objects.create(
        name="run", argv=["run", "{file}", "{n}"], schema=schema, gpu="no", item_argument="file"
    )


def test_it_has_the_arguments_of_the_chosen_script_but_not_that_of_the_item(alice: User) -> None:
    page = logged_in(alice).get("/batches/", {"script": "run"}).content.decode()

    assert 'name="script_args.n"' in page
    assert 'placeholder="3"' in page
    assert "1 to 9." in page
    assert 'name="script_args.file"' not in page
    assert "Each item below: Recording" in page
    assert 'name="command"' not in page


def test_without_a_script_it_has_a_command(alice: User) -> None:
    page = logged_in(alice).get("/batches/", {"script": "none such"}).content.decode()

    assert 'name="command"' in page
    assert "script_args" not in page


def test_the_check_names_the_wrong_item_and_stores_nothing(alice: User) -> None:
    client = logged_in(alice)
    values = {"script": "run", "script_args.n": "2", "items": "/a\n/b", "check": "1"}

    checked = client.post("/batches/", values).content.decode()
    wrong = client.post("/batches/", values | {"items": "/a\nb"})

    assert "2 items without mistakes, from /a to /b. Nothing was submitted." in checked
    assert wrong.status_code == 422
    assert "Item 2: &#x27;b&#x27; does not match" in wrong.content.decode()
    assert not Batch.objects.exists()


def test_a_missing_argument_is_named_at_its_field(alice: User) -> None:
    answer = logged_in(alice).post("/batches/", {"script": "run", "items": "/a"})

    page = answer.content.decode()
    assert '<a href="#id_script_args.n">N</a>: This argument is required.' in page
    assert 'id="id_script_args.n_error"' in page


def test_it_sets_memory_limit_and_priority_of_each_item(alice: User) -> None:
    values = {
        "command": "true", "items": "a", "gpus": "1", "gpu_memory": "24GiB",
        "time_limit": "2h", "priority": "2",
    }  # fmt: skip
    assert logged_in(alice).post("/batches/", values).status_code == 302

    (job,) = jobs_of(Batch.objects.get().request, [(0, "a")], timezone.now())

    assert job.requirement.memory_bytes == 24 * 1024**3
    assert (job.time_limit, job.priority) == (timedelta(hours=2), 2)


def test_the_page_of_scripts_leads_to_it(alice: User) -> None:
    page = logged_in(alice).get("/scripts/").content.decode()

    assert 'href="/batches/?script=run#new-batch"' in page
