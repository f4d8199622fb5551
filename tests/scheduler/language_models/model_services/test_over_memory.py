"""An instance that holds more memory than it was placed with is an incident, like a job's."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from monitor.facts.incidents import OVER_MEMORY
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Incident
from scheduler.dispatch.steps.controller import IncidentWatch
from tests.builders import GIB
from tests.scheduler.language_models.model_services.model_box import Box, load

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


@pytest.mark.parametrize(("held", "incidents"), [(20 * GIB, 0), (27 * GIB, 1)])
def test_an_instance_above_its_placed_memory_is_an_incident(held: int, incidents: int) -> None:
    box, watch = Box(), IncidentWatch("gpubox")
    loaded = load(box)
    box.held[loaded.job_id or 0] = held
    for number in range(35):
        box.step(after_s=10)
        newest = snapshots.newest("gpubox")
        assert newest is not None
        watch.judge(replace(newest, seq=number), box.now)

    found = Incident.objects.filter(rule=OVER_MEMORY)
    assert found.count() == incidents
    for row in found:
        assert row.text.startswith(f"More memory than booked: model small (job {loaded.job_id})")
        assert "holds 27.0 GiB on GPU 0" in row.text
        assert "it requested 20.0 GiB" in row.text
