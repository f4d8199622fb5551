"""Jobs in another engine on pages and in REST."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from scheduler.models import EngineStatus, EngineTask
from tests import jobs_made
from tests.builders import NOW

pytestmark = pytest.mark.django_db


def test_the_status_page_shows_whether_slurm_answers(
    root: User, as_user: Callable[[User], Client]
) -> None:
    EngineStatus.objects.create(
        host="gpubox", engine="slurm", problem="Connection refused", since_at=NOW,
        nodes=[{"name": "gpu03", "word": "DRAIN", "gpus": 4, "reason": "Low CPUs"}],
    )  # fmt: skip

    text = as_user(root).get("/status/").content.decode()

    assert "Connection refused" in text
    assert "gpu03" in text
    assert "Low CPUs" in text


def test_a_waiting_job_shows_its_number_in_slurm(
    alice: User, as_user: Callable[[User], Client]
) -> None:
    job = jobs_made.waiting(alice)
    EngineTask.objects.create(
        job=job, host="gpubox", engine="slurm", number=1, nonce="n", ref="4711", created_at=NOW
    )

    text = as_user(alice).get(f"/jobs/{job.pk}/").content.decode()

    assert "Slurm job 4711" in text


@pytest.mark.parametrize("page", ["/shares/", "/windows/", "/api/quota/"])
def test_pages_of_limits_say_which_of_them_slurm_decides(
    alice: User, as_user: Callable[[User], Client], page: str
) -> None:
    words = "Slurm decides order, fair share, quotas, time windows and preemption"
    assert words not in as_user(alice).get(page).content.decode()

    EngineStatus.objects.create(host="login1", engine="slurm", since_at=NOW)

    assert (
        f"{words} of the jobs that login1 hands to it" in as_user(alice).get(page).content.decode()
    )
