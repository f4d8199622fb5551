"""An operator pauses a GPU, lets it work again, ends its quarantine: by page and by REST."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from monitor.facts.gpus import ClosureFact, ClosureKind
from monitor.facts.readings import Snapshot
from monitor.gpus.rows import closures as availability
from monitor.gpus.rows import snapshot as snapshots
from monitor.journal.rows import audit, events
from tests.builders import NOW, claim, gpu_uuid

Browse = Callable[[User], Client]
Seen = Callable[..., Snapshot]
PATH = f"/gpus/{gpu_uuid()}/"
API = f"/api/gpus/{gpu_uuid()}/"


@pytest.fixture(autouse=True)
def _seen(seen: Seen) -> None:
    seen(2)


def kinds() -> list[str]:
    return [closure.kind.value for closure in availability.on("gpubox")]


def quarantine() -> None:
    fact = ClosureFact(
        gpu_uuid=gpu_uuid(), kind=ClosureKind.QUARANTINED, since=NOW, job_ref="7", pid=42
    )
    availability.close(fact, "gpubox")
    snapshots.open_claim(claim("7"), "gpubox", NOW)
    snapshots.close_claims("7", NOW)


def test_an_operator_pauses_a_gpu_and_all_see_why(root: User, alice: User, as_user: Browse) -> None:
    as_user(root).post(PATH + "pause/", {"reason": "New  fan.\n"})

    (event,) = events.recent(1, kind="GPU_PAUSED")
    (entry,) = audit.about(f"GPU {gpu_uuid()}")
    assert event.text == entry.text == "root paused GPU 0: New fan."
    assert "Paused by root: New fan." in as_user(alice).get(PATH).content.decode()


def test_and_lets_it_work_again(root: User, as_user: Browse) -> None:
    as_user(root).post(PATH + "pause/")
    page = as_user(root).get(PATH).content.decode()
    as_user(root).post(PATH + "resume/")

    assert "Resume scheduling" in page
    assert kinds() == []


def test_a_quarantine_that_is_ended_does_not_come_back(root: User, as_user: Browse) -> None:
    quarantine()

    as_user(root).post(PATH + "release/")

    assert kinds() == []
    assert snapshots.held_claims("gpubox") == []


@pytest.mark.parametrize("deed", ["pause/", "resume/", "release/"])
def test_nobody_else_may(alice: User, as_user: Browse, deed: str) -> None:
    quarantine()

    assert as_user(alice).post(PATH + deed).status_code == 403
    assert as_user(alice).post(API + deed, {}, "application/json").status_code == 403
    assert kinds() == ["quarantined"]
    assert "Pause it" not in as_user(alice).get(PATH).content.decode()


def test_doing_it_twice_says_so(root: User, as_user: Browse) -> None:
    as_user(root).post(PATH + "pause/")
    again = as_user(root).post(PATH + "pause/", follow=True)

    assert "GPU 0 is paused already." in again.content.decode()
    assert events.count("GPU_PAUSED", since=NOW, gpu_uuid=gpu_uuid()) == 1


@pytest.mark.parametrize(("deed", "body"), [("pause/", {"reason": "Fan."}), ("release/", {})])
def test_rest_does_the_same(root: User, as_user: Browse, deed: str, body: dict[str, Any]) -> None:
    quarantine()
    client = as_user(root)

    first = client.post(API + deed, body, "application/json")
    second = client.post(API + deed, body, "application/json")

    assert (first.json()["changed"], second.json()["changed"]) == (True, False)


def test_a_gpu_that_never_was_can_not_be_paused(root: User, as_user: Browse) -> None:
    assert as_user(root).post("/gpus/GPU-nonsense/pause/").status_code == 404
    assert as_user(root).post("/api/gpus/GPU-nonsense/resume/").status_code == 404
