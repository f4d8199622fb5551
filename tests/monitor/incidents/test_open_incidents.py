from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from monitor.facts.incidents import IDLE_HELD, SUSTAINED
from monitor.gpus.rows import snapshot as snapshots
from monitor.incidents import rows as open_incidents
from monitor.models import Incident
from tests.builders import NOW, gpu_uuid, snapshot

pytestmark = pytest.mark.django_db


def ago(hours: float) -> datetime:
    return NOW - timedelta(hours=hours)


def incident(on: int | None = 0, **changes: Any) -> Incident:
    facts: dict[str, Any] = {
        "host": "gpubox",
        "gpu_id": None if on is None else gpu_uuid(on),
        "rule": SUSTAINED,
        "key": "GPU 0|alice",
        "user": "alice",
        "since_at": ago(1),
        "opened_at": ago(0.8),
        "last_seen_at": NOW,
        "text": "Detected GPU hog",
    }
    facts |= changes
    facts.setdefault(
        "hog_spans", [[facts["since_at"].timestamp(), facts["last_seen_at"].timestamp()]]
    )
    return Incident.objects.create(**facts)


def test_a_gpu_is_hogged_while_an_incident_of_a_hog_rule_is_open_and_not_snoozed() -> None:
    snapshots.record(snapshot(4))
    incident(0)
    incident(1, key="1", closed_at=NOW)
    incident(2, key="2", rule=IDLE_HELD)
    incident(3, key="3", snoozed_until=NOW + timedelta(hours=1))
    incident(2, key="4", hog_spans=[])
    assert open_incidents.hogs_on("gpubox", NOW) == {gpu_uuid(0)}
    assert open_incidents.hogs_on("other", NOW) == set()


def test_the_share_of_hogging_counts_each_second_once_and_only_inside_the_time() -> None:
    snapshots.record(snapshot(2))
    incident(0, since_at=ago(30), last_seen_at=ago(20))
    incident(1, key="1", since_at=ago(22), last_seen_at=ago(18))
    incident(1, key="2", rule=IDLE_HELD, since_at=ago(10))
    incident(1, key="3", since_at=ago(10), hog_spans=[])
    assert open_incidents.hog_share("gpubox", 24, NOW) == pytest.approx(6 / 24)


def test_the_hog_share_of_a_host_without_readings_is_unknown() -> None:
    assert open_incidents.hog_share("gpubox", 24, NOW) is None
    snapshots.record(snapshot(1))
    assert open_incidents.hog_share("gpubox", 24, NOW) == 0


@pytest.mark.parametrize(
    ("others", "more"),
    [
        ([], ""),
        ([{"on": 1}], "; also on 1 other GPU"),
        ([{"on": 1}, {"on": 2}], "; also on 2 other GPUs"),
        ([{"on": 1, "closed_at": NOW}, {"on": 2, "rule": IDLE_HELD}], ""),
    ],
    ids=["alone", "one more", "two more", "ended, or of another rule"],
)
def test_the_line_of_an_incident_says_on_how_many_further_gpus_it_is(
    others: list[dict[str, Any]], more: str
) -> None:
    snapshots.record(snapshot(3))
    lead = incident(0, severity="error")
    for number, other in enumerate(others):
        incident(**({"key": str(number), "lead": lead} | other))

    assert Incident.objects.get(pk=lead.pk).headline == f"Detected GPU hog{more}"
