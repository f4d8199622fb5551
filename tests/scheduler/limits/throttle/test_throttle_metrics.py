from __future__ import annotations

from datetime import timedelta

import pytest

from monitor.models import Constraint
from monitor.pages.metrics import Families
from scheduler import metrics
from scheduler.limits.throttle import step as throttle_rows
from scheduler.limits.throttle.policy.throttle import Mode
from scheduler.limits.throttle.step import ThrottleStep
from tests.builders import GIB, NOW, gpu, gpu_uuid, process, snapshot
from tests.monitor.scrape import Scrape, scrape_of

pytestmark = pytest.mark.django_db


def scrape(second: float = 1) -> Scrape:
    into = Families()
    metrics.add_metrics(into, NOW + timedelta(seconds=second))
    return scrape_of(into)


def looked() -> None:
    busy = gpu(0, utilization_pct=95.0, memory_used_bytes=GIB)
    ThrottleStep("gpubox").judge(snapshot([busy, gpu(1)], [process(1, sm_pct=95.0)]), NOW)


def test_what_quotas_count_of_each_gpu_and_who_is_deferred() -> None:
    text = "The host is busy: memory 84 %."
    Constraint.objects.create(host="gpubox", kind="host_memory_use", text=text, from_at=NOW)
    looked()
    samples = scrape()
    parts = samples.families["gpucoord_quota_multiplier"].samples
    assert {s.labels["gpu"]: s.value for s in parts} == {gpu_uuid(0): 0.1, gpu_uuid(1): 1.0}
    waits = samples.families["gpucoord_starts_deferred"].samples
    assert {s.labels["class"]: s.value for s in waits} == {
        "background": 1,
        "normal": 1,
        "user-initiated": 0,
    }
    assert samples.value("gpucoord_starts_allowed") == 1
    assert samples.value("gpucoord_mode_defensive") == 0


def test_a_set_mode_is_told() -> None:
    throttle_rows.override("gpubox", Mode.DEFENSIVE, NOW + timedelta(hours=1), by="root", now=NOW)
    assert scrape().value("gpucoord_mode_defensive") == 1


def test_a_silent_controller_tells_nothing() -> None:
    looked()
    assert "gpucoord_quota_multiplier" not in scrape(600).families
