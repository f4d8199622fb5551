"""Users whose jobs have no OS account of their own."""

from __future__ import annotations

import os
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from msgspec.structs import replace

from scheduler.models import Job
from scheduler.submission.intake import actions as intake_actions
from scheduler.submission.intake.policy import account_rule
from tests.processes.scheduling import NO_ACCOUNT
from tests.scheduler.jobs.test_job_api import Api

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes accounts")


@pytest.fixture(autouse=True)
def _shipped_setting(settings: Any) -> None:
    settings.CONFIG = replace(settings.CONFIG, run_as="auto")


@as_root
@pytest.mark.parametrize("path", ["/jobs/", "/jobs/what-if/"])
def test_a_job_of_a_user_without_an_account_is_refused_with_what_to_do(path: str) -> None:
    api = Api(User.objects.create(username=NO_ACCOUNT))

    status, answer = api.post(path, {"command": "id"})

    assert (status, [error["field"] for error in answer["errors"]]) == (422, ["owner"])
    assert "create the OS account" in answer["errors"][0]["message"]
    assert not Job.objects.exists()


@as_root
def test_a_job_of_a_superuser_without_an_account_is_accepted() -> None:
    owner = User.objects.create(username=NO_ACCOUNT, is_superuser=True)

    assert intake_actions.submit({"command": "id"}, owner, timezone.now()).state == "queued"


@as_root
def test_the_shared_account_is_used_when_the_setting_permits_it(settings: Any) -> None:
    settings.CONFIG = replace(settings.CONFIG, run_as="nobody")
    owner = User.objects.create(username=NO_ACCOUNT)

    assert intake_actions.submit({"command": "id"}, owner, timezone.now()).state == "queued"


@pytest.mark.parametrize(
    ("is_root", "run_as", "words"),
    [
        (False, "auto", "can read and change"),
        (True, "service", "full control of this server"),
        (True, "nobody", "share the account nobody"),
    ],
)
def test_shared_accounts_are_a_warning(is_root: bool, run_as: str, words: str) -> None:
    rule = account_rule(is_root=is_root, run_as=run_as, service_account="carol")

    assert (rule.is_safe, words in rule.text, bool(rule.todo)) == (False, True, True)


def test_separate_accounts_are_no_warning() -> None:
    assert account_rule(is_root=True, run_as="auto", service_account="root").is_safe
