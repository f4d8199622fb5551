"""Instances sleep instead of ending, if the driver shows that they give their memory back."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from monitor.models import Claim, Event
from scheduler.facts.jobs import NewJob, Requirement
from scheduler.facts.language_models import InstanceFact, InstanceState
from scheduler.jobs.rows import changes as job_queue
from scheduler.language_models.model_services import policy, rows
from scheduler.language_models.model_services.policy import Release
from scheduler.models import Job, ModelInstance, ModelService
from tests.builders import GIB, NOW, gpu_uuid
from tests.scheduler.language_models.model_services.model_box import Box, load, scripts

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
SLEEPS: dict[str, Any] = {
    "sleep_path": "/sleep?level={level}",
    "wake_path": "/wake_up",
    "memory_mib": 40 * 1024,
}


def loaded(box: Box, **values: Any) -> ModelInstance:
    row = load(box, **(SLEEPS | values))
    box.held[row.job_id or 0] = 40 * GIB
    box.step()
    return row


def falls_asleep(box: Box, row: ModelInstance, left: int | None = GIB) -> ModelInstance:
    """It is idle for long, and its server then holds `left`."""
    ModelService.objects.update(keep_alive_s=1)
    for _ in range(4):
        box.step()
    box.held[row.job_id or 0] = left
    for _ in range(16):
        box.step()
    ModelService.objects.update(keep_alive_s=None)
    row.refresh_from_db()
    return row


@pytest.mark.parametrize(
    ("path", "host_free", "left_memory", "expected"),
    [
        ("/sleep?level={level}", 64, False, 1),
        ("/sleep?level={level}", 10, False, 2),
        ("/sleep?level={level}", None, False, 2),
        ("/sleep", 64, False, 1),
        ("/sleep", 10, False, 0),
        ("/sleep?level={level}", 64, True, 0),
        ("", 64, False, 0),
    ],
)
def test_the_level_depends_on_host_memory_and_on_the_last_sleep(
    path: str, host_free: int | None, left_memory: bool, expected: int
) -> None:
    one = InstanceFact(
        id=1, service_id=1, state=InstanceState.READY, since=NOW, left_memory=left_memory
    )

    assert policy.level(one, path, needs_bytes=40, host_free_bytes=host_free) == expected


@pytest.mark.parametrize(
    ("peak", "expected"), [(None, 2 * GIB), (5 * GIB, 2 * GIB), (40 * GIB, 4 * GIB)]
)
def test_a_sleeping_instance_may_hold_2_gib_or_a_tenth_of_its_peak(
    peak: int | None, expected: int
) -> None:
    assert policy.most_left(peak) == expected


@pytest.mark.parametrize(
    ("held", "late_s", "expected"),
    [
        (GIB, 1, Release.RELEASED),
        (3 * GIB, 14, Release.AWAITED),
        (3 * GIB, 15, Release.LEFT),
        (None, 14, Release.AWAITED),
        (None, 15, Release.LEFT),
    ],
)
def test_memory_is_given_back_within_15_s(
    held: int | None, late_s: float, expected: Release
) -> None:
    from datetime import timedelta

    assert policy.judge(held, 2 * GIB, NOW, NOW + timedelta(seconds=late_s)) is expected


def test_an_idle_instance_sleeps_and_claims_only_what_it_still_holds() -> None:
    box = Box()
    row = falls_asleep(box, loaded(box))

    assert (row.state, row.sleep_level, row.left_bytes) == ("sleeping", 1, GIB)
    claim = Claim.objects.get()
    assert (claim.memory_bytes, claim.phase) == (GIB, "sleeping")
    assert "/sleep?level=1" in box.servers.asked
    # Its weights are in host memory, which no job gets.
    assert Job.objects.get().memory_bytes == 40 * GIB
    assert not Event.objects.filter(kind="SLEEP_LEFT_MEMORY").exists()


@pytest.mark.parametrize(("left", "counts"), [(26 * GIB, 26 * GIB), (None, 40 * GIB)])
def test_a_sleep_that_leaves_memory_is_reported_and_the_next_time_it_is_stopped(
    left: int | None, counts: int
) -> None:
    box = Box()
    row = falls_asleep(box, loaded(box), left)

    assert Event.objects.filter(kind="SLEEP_LEFT_MEMORY", severity="warning").count() == 1
    assert Claim.objects.get().memory_bytes == counts
    assert row.left_memory
    box.held[row.job_id or 0] = GIB
    rows.request_instance(row.service_id, box.now)
    for _ in range(3):
        box.step()
    row.refresh_from_db()
    assert row.state == "ready"
    box.held[row.job_id or 0] = 40 * GIB
    ModelService.objects.update(keep_alive_s=1)
    for _ in range(4):
        box.step()
    row.refresh_from_db()
    assert row.state == "cooling"


@pytest.mark.parametrize(
    ("used", "claimed", "is_reported"),
    [(GIB, GIB, False), (30 * GIB, 30 * GIB, True), (None, 40 * GIB, True)],
)
def test_a_sleeping_instance_that_the_driver_does_not_list_holds_what_may_be_its_own(
    used: int | None, claimed: int, is_reported: bool
) -> None:
    """Its memory is unknown, not 0, unless little of the GPU is in use."""
    box = Box()
    row = loaded(box)
    ModelService.objects.update(keep_alive_s=1)
    for _ in range(4):
        box.step()
    del box.held[row.job_id or 0]
    box.unlisted[0] = used
    for _ in range(16):
        box.step()
    row.refresh_from_db()

    assert row.state == "sleeping"
    assert row.left_bytes == Claim.objects.get().memory_bytes == claimed
    assert Event.objects.filter(kind="SLEEP_LEFT_MEMORY").exists() is is_reported


@pytest.mark.parametrize(
    ("own", "used", "others", "expected"),
    [
        ([GIB, 2 * GIB], 10 * GIB, 0, 3 * GIB),
        ([GIB, None], 10 * GIB, 0, None),
        ([], 10 * GIB, 4 * GIB, 6 * GIB),
        ([], 10 * GIB, 11 * GIB, 0),
        ([], None, 0, None),
    ],
)
def test_memory_without_a_listed_process_is_what_others_do_not_use(
    own: list[int | None], used: int | None, others: int, expected: int | None
) -> None:
    assert policy.held(own, used_bytes=used, others_bytes=others) == expected


def test_it_wakes_into_its_place_for_a_request() -> None:
    box = Box()
    row = falls_asleep(box, loaded(box))

    claimed: list[int | None] = []
    box.servers.on_call = lambda _path: claimed.append(Claim.objects.get().memory_bytes)

    rows.request_instance(row.service_id, box.now)
    for _ in range(3):
        box.step()
    row.refresh_from_db()

    assert box.servers.asked[-1] == "/wake_up"
    # Its memory was claimed before its server was asked.
    assert claimed == [40 * GIB]
    assert (row.state, row.sleep_level) == ("ready", 0)
    assert Job.objects.get().memory_bytes is None
    assert ModelInstance.objects.count() == 1


def test_without_room_it_ends_and_another_gpu_gets_a_new_instance() -> None:
    box = Box(gpus=2)
    row = falls_asleep(box, loaded(box, on_gpus=[]))
    taken = next(n for n in range(2) if gpu_uuid(n) in row.gpu_uuids)
    box.strangers[taken] = 50 * GIB

    rows.request_instance(row.service_id, box.now)
    for _ in range(3):
        box.step()
    row.refresh_from_db()
    assert row.state == "cooling"
    assert "no room" in row.reason
    box.held.pop(row.job_id or 0)
    for _ in range(3):
        box.step()

    other = ModelInstance.objects.get(state="ready")
    assert other.gpu_uuids == [gpu_uuid(1 - taken)]
    assert "/wake_up" not in box.servers.asked


def test_a_model_sleeps_for_a_job_that_fits_beside_it(alice: User) -> None:
    box = Box()
    row = loaded(box)
    new = NewJob(command="true", requirement=Requirement(memory_bytes=60 * GIB))
    jobs = [job_queue.submit(new, alice, box.now) for _ in range(6)]
    box.step(after_s=100)
    box.step()
    box.held[row.job_id or 0] = GIB
    for _ in range(4):
        box.step()
    row.refresh_from_db()

    assert row.state == "sleeping"
    started = Claim.objects.filter(kind="script", until_at=None)
    assert started.values_list("job_ref", flat=True).get() in {str(job.pk) for job in jobs}


def test_a_model_ends_for_a_job_that_needs_the_whole_gpu(alice: User) -> None:
    box = Box()
    row = loaded(box)
    scripts(alice, 6, box.now)

    box.step(after_s=100)
    box.step()
    box.step()
    row.refresh_from_db()

    assert row.state == "cooling"
    assert not box.servers.asked


def test_a_sleeping_model_ends_for_any_job_that_needs_its_gpu(alice: User) -> None:
    box = Box()
    row = falls_asleep(box, loaded(box))
    scripts(alice, 1, box.now)

    box.step(after_s=100)
    box.step()
    row.refresh_from_db()

    assert row.state == "cooling"
    assert "sleeps" in row.reason
