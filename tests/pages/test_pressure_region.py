from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.template.loader import render_to_string
from django.test import Client

from monitor import store
from monitor.models import Constraint
from monitor.readings import GpuReading, ProcessReading
from scheduler.models import Quota
from scheduler.pages import pressure_region
from scheduler.pressure import Pressure
from tests import jobs_made
from tests.builders import GIB, NOW, gpu, process, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


def looked(*gpus: GpuReading, processes: tuple[ProcessReading, ...] = (), second: int = 0) -> None:
    at = NOW + timedelta(seconds=second)
    shot = snapshot(list(gpus), processes, at=at)
    store.record(shot)
    Pressure("gpubox").judge(shot, at)


def shown(second: int = 1) -> str:
    now = NOW + timedelta(seconds=second)
    return render_to_string("scheduler/_pressure.html", {**pressure_region.load(now), "now": now})


def busy(index: int = 0) -> GpuReading:
    return gpu(index, utilization_pct=95.0, memory_used_bytes=GIB)


def test_before_the_first_look_it_says_so() -> None:
    assert "has not looked yet" in shown()


def test_a_free_machine_holds_nothing_back() -> None:
    looked(gpu(0), gpu(1))
    assert "Nothing: jobs of every class may start." in shown()
    assert "Cooperative" in shown()
    assert "A share of" not in shown()


def test_a_busy_gpu_is_named_and_what_a_share_is_worth() -> None:
    looked(busy(0), gpu(1), processes=(process(1, sm_pct=95.0),))
    page = shown()
    assert "GPU 0 is busy" in page
    assert "only user-initiated jobs are put there" in page
    assert "A share of 30 % counts as 16 % now: others load the GPUs." in page


def test_the_story_of_the_neighbour_is_thirty_to_three(alice: User) -> None:
    jobs_made.waiting(alice)
    looked(busy(0), processes=(process(1, sm_pct=95.0),))
    page = shown()
    assert "Background and normal jobs are deferred" in page
    assert "A share of 30 % counts as 3 % now" in page


def test_the_share_that_holds_for_everybody_is_the_one_that_is_told() -> None:
    Quota.objects.create(share_pct=50.0)
    looked(busy(0), processes=(process(1, sm_pct=95.0),))
    assert "A share of 50 % counts as 5 % now" in shown()


def test_constraints_are_listed_with_what_they_do() -> None:
    looked(gpu(0))
    text = "The host is busy: memory 84 %."
    Constraint.objects.create(host="gpubox", kind="host_memory_use", text=text, from_at=NOW)
    assert text in shown()
    assert "normal and background jobs wait" in shown()


def test_what_a_silent_controller_said_no_longer_counts() -> None:
    looked(busy(0), processes=(process(1, sm_pct=95.0),))
    assert "deferred" not in shown(600)


def test_its_version_does_not_change_while_nothing_does() -> None:
    looked(busy(0), gpu(1), processes=(process(1, sm_pct=95.0),))
    before = pressure_region.load(NOW)
    looked(busy(0), gpu(1), processes=(process(1, sm_pct=93.0),), second=5)
    assert pressure_region.load(NOW + timedelta(seconds=5)) == before


def test_it_is_cheap(django_assert_max_num_queries: Callable[[int], object]) -> None:
    looked(busy(0), gpu(1))
    with django_assert_max_num_queries(5):  # type: ignore[attr-defined]
        pressure_region.load(NOW)


def test_rest_tells_the_same(alice: User, as_user: Callable[[User], Client]) -> None:
    looked(busy(0), gpu(1), processes=(process(1, sm_pct=95.0),))
    [line] = as_user(alice).get("/api/throttle/").json()
    assert line["multipliers"] == {gpu(0).uuid: 0.1, gpu(1).uuid: 1.0}
    assert set(line["closed_gpus"]) == {"normal", "background"}
    assert line["reason"] == "others load the GPUs"


def test_many_busy_gpus_are_counted() -> None:
    looked(*(busy(index) for index in range(9)))
    assert "9 GPUs are busy" in shown()
