from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.template.loader import render_to_string
from django.test import Client

from monitor.facts.readings import GpuReading, ProcessReading
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Constraint
from scheduler.limits.throttle import pages as throttle_region
from scheduler.limits.throttle.step import ThrottleStep
from scheduler.models import Quota
from tests import jobs_made
from tests.builders import GIB, NOW, gpu, process, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


def looked(*gpus: GpuReading, processes: tuple[ProcessReading, ...] = (), second: int = 0) -> None:
    at = NOW + timedelta(seconds=second)
    shot = snapshot(list(gpus), processes, at=at)
    snapshots.record(shot)
    ThrottleStep("gpubox").judge(shot, at)


def shown(second: int = 1) -> str:
    now = NOW + timedelta(seconds=second)
    return render_to_string("scheduler/_pressure.html", {**throttle_region.load(now), "now": now})


def busy(index: int = 0) -> GpuReading:
    return gpu(index, utilization_pct=95.0, memory_used_bytes=GIB)


def test_before_the_first_look_it_says_so() -> None:
    assert "Waiting for the first check" in shown()


def test_a_free_machine_holds_nothing_back() -> None:
    looked(gpu(0), gpu(1))
    assert "No limits: jobs of every priority can start" in shown()
    assert "A share of" not in shown()


def test_a_busy_gpu_is_named_and_what_a_share_is_worth() -> None:
    looked(busy(0), gpu(1), processes=(process(1, sm_pct=95.0),))
    page = shown()
    assert "GPU 0 is busy" in page
    assert "only priority 4–5 jobs can start there" in page
    assert "On 1 of 2 GPUs, quotas are reduced to 10 % (a share of 30 % counts as 3 %):" in page


def test_the_story_of_the_neighbour_is_thirty_to_three(alice: User) -> None:
    jobs_made.waiting(alice)
    looked(busy(0), processes=(process(1, sm_pct=95.0),))
    page = shown()
    assert "Background and normal jobs are deferred" in page
    assert "a share of 30 % counts as 3 %" in page


def test_the_share_that_applies_to_all_users_is_shown() -> None:
    Quota.objects.create(share_pct=50.0)
    looked(busy(0), processes=(process(1, sm_pct=95.0),))
    assert "a share of 50 % counts as 5 %" in shown()


def test_constraints_are_listed_with_what_they_do() -> None:
    looked(gpu(0))
    text = "The host is busy: memory 84 %."
    Constraint.objects.create(host="gpubox", kind="host_memory_use", text=text, from_at=NOW)
    assert text in shown()
    assert "normal and background jobs wait" in shown()


def test_the_dashboard_shows_what_needs_a_person_and_the_page_of_the_mode_all(
    alice: User, as_user: Callable[[User], Client]
) -> None:
    looked(busy(0), processes=(process(1, sm_pct=95.0),))
    assert throttle_region.load_urgent(NOW + timedelta(seconds=1))["lines"] == []
    text = "The host is busy: memory 84 %."
    Constraint.objects.create(host="gpubox", kind="host_memory_use", text=text, from_at=NOW)

    [(host, line)] = throttle_region.load_urgent(NOW + timedelta(seconds=1))["lines"]
    assert (host, line.text, line.shape) == ("gpubox", text, "warning")
    assert text in as_user(alice).get("/").text
    page = as_user(alice).get("/mode/").text
    assert text in page.split('id="limits"')[1]


def test_what_a_silent_controller_said_no_longer_counts() -> None:
    looked(busy(0), processes=(process(1, sm_pct=95.0),))
    assert "deferred" not in shown(600)


def test_its_version_does_not_change_while_nothing_does() -> None:
    looked(busy(0), gpu(1), processes=(process(1, sm_pct=95.0),))
    before = throttle_region.load(NOW)
    looked(busy(0), gpu(1), processes=(process(1, sm_pct=93.0),), second=5)
    assert throttle_region.load(NOW + timedelta(seconds=5)) == before


def test_it_is_cheap(django_assert_max_num_queries: Callable[[int], object]) -> None:
    looked(busy(0), gpu(1))
    with django_assert_max_num_queries(8):  # type: ignore[attr-defined]
        throttle_region.load(NOW)


def test_rest_returns_the_same(alice: User, as_user: Callable[[User], Client]) -> None:
    looked(busy(0), gpu(1), processes=(process(1, sm_pct=95.0),))
    [line] = as_user(alice).get("/api/throttle/").json()
    assert line["multipliers"] == {gpu(0).uuid: 0.1, gpu(1).uuid: 1.0}
    assert set(line["closed_gpus"]) == {"normal", "background"}
    assert line["reason"] == "GPUs are in use outside the queue"


def test_many_busy_gpus_are_counted() -> None:
    looked(*(busy(index) for index in range(9)))
    assert "9 GPUs are busy" in shown()
