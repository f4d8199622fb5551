from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from monitor.facts.gpus import GpuState
from monitor.facts.incidents import Badge, Badges
from monitor.facts.readings import Snapshot
from monitor.pages import cards
from monitor.pages import rendering as board
from monitor.pages.rendering import QueueCounts
from tests.builders import NOW, gpu, gpu_uuid, host, process, snapshot


def summed(snapshots: list[Snapshot], badges: Badges | None = None, **facts: Any) -> board.Summary:
    badges = badges or Badges()
    return board.summary(snapshots, cards.cards(snapshots, badges), NOW, badges, **facts)


def open_incidents(*found: Badge) -> Badges:
    harmful = [badge for badge in found if badge.is_warning]
    worst = max(harmful, key=lambda badge: badge.rank, default=None)
    return Badges(open=len(found), harmful=len(harmful), worst=worst)


def test_the_headline_says_that_all_is_fine() -> None:
    found = [process(1), process(2, on=1, user="bob"), process(2, user="bob")]
    said = summed([snapshot([gpu(0, state=GpuState.EXTERNAL), gpu(1)], found)])

    assert said.verdict == "2 of 2 GPUs healthy"
    assert (said.busy, said.people) == (1, 2)


def test_the_headline_names_lost_gpus() -> None:
    said = summed([snapshot([gpu(0), gpu(1, state=GpuState.LOST)])])

    assert (said.shape, said.verdict) == ("failing", "GPU 1 is lost")


def test_the_headline_says_when_the_gpus_cannot_be_read() -> None:
    said = summed([snapshot(0, problem="No driver")])

    assert (said.shape, said.verdict) == ("warning", "The GPUs can't be read")


def test_the_headline_waits_for_the_first_reading() -> None:
    assert summed([]).shape == "waiting"


HELD_IDLE = Badge(
    "held idle", "warning", 7, "", title="Memory held idle", gpu_uuid=gpu_uuid(1), waited_s=900
)
HARMLESS = Badge("heavy use", "info", 8, "", title="Sustained high use", gpu_uuid=gpu_uuid(0))


def test_the_headline_names_the_worst_incident_that_makes_others_wait() -> None:
    said = summed([snapshot(2)], open_incidents(HELD_IDLE, HARMLESS))

    assert (said.shape, said.verdict) == (
        "warning",
        "Memory held idle on GPU 1: others wait",
    )


def test_a_harmless_incident_leaves_the_headline_green() -> None:
    said = summed([snapshot(2)], open_incidents(HARMLESS))

    assert (said.shape, said.verdict) == ("ok", "2 of 2 GPUs healthy")


@pytest.mark.parametrize(
    ("waiting", "idle_s", "shape", "verdict"),
    [
        (2, 90, "warning", "GPU 1 is idle while 2 jobs wait"),
        (1, 90, "warning", "GPU 1 is idle while 1 job waits"),
        (2, 30, "ok", "2 of 2 GPUs healthy"),
        (0, 90, "ok", "2 of 2 GPUs healthy"),
    ],
)
def test_the_headline_reports_an_idle_gpu_while_jobs_wait(
    waiting: int, idle_s: int, shape: str, verdict: str
) -> None:
    since = NOW - timedelta(seconds=idle_s)
    readings = [gpu(0, state=GpuState.EXTERNAL), gpu(1, state=GpuState.IDLE, state_since=since)]
    said = summed([snapshot(readings)], queue=QueueCounts(waiting, waiting))

    assert (said.shape, said.verdict, said.free) == (shape, verdict, 1)


def test_a_closed_gpu_is_not_counted_as_idle_while_jobs_wait() -> None:
    since = NOW - timedelta(hours=1)
    closed = gpu(0, state=GpuState.IDLE, state_since=since, closed="Paused by admin")

    assert summed([snapshot([closed])], queue=QueueCounts(2, 2)).shape == "ok"


def test_a_lost_gpu_is_worse_than_an_incident() -> None:
    said = summed([snapshot([gpu(0, state=GpuState.LOST), gpu(1)])], open_incidents(HELD_IDLE))

    assert (said.shape, said.verdict) == ("failing", "GPU 0 is lost")


def test_the_headline_counts_waiting_jobs_that_no_idle_gpu_could_start() -> None:
    said = summed([snapshot([gpu(0)])], queue=QueueCounts(waiting=3, startable=0))

    assert (said.waiting, said.shape) == (3, "ok")


def test_a_host_without_contact_is_named_unless_it_is_the_only_one() -> None:
    silent = snapshot(1, host=host(name="west"), at=NOW - timedelta(seconds=16))
    both = [snapshot(1, host=host(name="east"), at=NOW), silent]

    assert summed(both).verdict == "No contact with west"
    assert "contact" not in summed([silent]).verdict
