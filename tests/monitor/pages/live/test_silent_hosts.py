"""Live pages while contact with one of several hosts is lost: the others stay live."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from msgspec.structs import replace

from monitor.facts.gpus import GpuState
from monitor.facts.readings import Snapshot
from monitor.gpus.rows import snapshot as snapshots
from monitor.pages import frames
from monitor.pages.rendering import Renderer
from tests.builders import NOW, gpu, gpu_uuid, host, process, snapshot

LAST = NOW - timedelta(minutes=5)
SILENT = 'is-silent"'


@pytest.fixture(autouse=True)
def _no_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_registered", {})


def seen(west_at: Any = LAST, gpus: int = 1) -> list[Snapshot]:
    """Two hosts; the readings of west are five minutes old."""
    east = [gpu(index, state=GpuState.IDLE) for index in range(gpus)]
    west = [gpu(gpus + index, state=GpuState.IDLE) for index in range(gpus)]
    return [
        snapshot(east, host=host(name="east"), at=NOW - timedelta(seconds=1)),
        snapshot(west, [process(on=gpus)], host=host(name="west"), at=west_at),
    ]


def message(shown: list[Snapshot], topic: str = "dashboard") -> dict[str, Any]:
    frame = Renderer().whole(shown, [topic], NOW)
    text = frame.message(topic, 0, NOW.timestamp())
    assert text is not None
    made: dict[str, Any] = json.loads(text)
    return made


def test_the_dashboard_is_as_old_as_the_readings_of_hosts_in_contact() -> None:
    assert message(seen())["age"] == 1.0
    assert message(seen(west_at=NOW - timedelta(seconds=10)))["age"] == 10.0
    # Nothing else is known, so the page is stale.
    assert message(seen()[1:])["age"] == 300.0


@pytest.mark.parametrize("gpus", [1, 20])
def test_host_and_gpus_without_contact_are_marked_and_not_counted(gpus: int) -> None:
    content = message(seen(gpus=gpus))["content"]

    assert content.count(SILENT) + content.count('is-silent" role="row"') >= 1 + gpus
    assert "contact lost" in content
    assert "no contact" in content
    plural = "s" * (gpus > 1)
    assert f"<b>0</b> of {gpus} GPU{plural} in use · <b>{gpus}</b> free" in content
    assert f"<b>{gpus}</b> GPU{plural} without contact" in content
    assert "<b>1</b> process" not in content


def test_nothing_is_marked_while_all_hosts_are_in_contact_or_none_is() -> None:
    for shown in (seen(west_at=NOW), seen()[1:]):
        assert "is-silent" not in message(shown)["content"]


def test_the_page_of_a_gpu_is_as_old_as_its_own_host() -> None:
    assert message(seen(), f"gpu:{gpu_uuid(0)}")["age"] == 1.0
    assert message(seen(), f"gpu:{gpu_uuid(1)}")["age"] == 300.0


@pytest.mark.django_db
@pytest.mark.parametrize("is_silent", [True, False])
def test_processes_without_contact_are_marked(
    alice: User, as_user: Callable[[User], Client], is_silent: bool
) -> None:
    now = timezone.now()
    for reading in seen(west_at=LAST if is_silent else NOW):
        snapshots.record(replace(reading, at=reading.at + (now - NOW)))

    page = as_user(alice).get("/processes/").content.decode()

    assert ('<tr class="is-silent" title="Contact with west is lost' in page) is is_silent


def test_the_table_of_processes_is_read_again_when_contact_is_lost() -> None:
    before, after = message(seen(west_at=NOW), "processes"), message(seen(), "processes")

    assert before["x"] != after["x"]
    assert after["age"] == 1.0
