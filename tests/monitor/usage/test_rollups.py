from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import Max, Model, Sum
from django.test.utils import CaptureQueriesContext
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from monitor.models import (
    GpuHour,
    GpuMinute,
    HostHour,
    HostMinute,
    HostSample,
    ProcessHour,
    ProcessMinute,
    Sample,
)
from monitor.usage.rows import rollups
from tests.monitor.past import gpu_row, process_use

# Not on a whole hour, so that hours are cut.
START = datetime(2026, 3, 2, 11, 17, tzinfo=UTC)
T = int(START.timestamp())
SPAN_S = 3 * 3600

maybe = lambda strategy: st.none() | strategy  # noqa: E731
readings = st.builds(
    dict,
    utilization_pct=maybe(st.integers(0, 100).map(float)),
    memory_used_bytes=maybe(st.integers(0, 192 * 1024**3)),
    power_w=maybe(st.integers(0, 1000).map(float)),
    temperature_c=maybe(st.integers(20, 100).map(float)),
)
past = st.dictionaries(st.integers(0, SPAN_S), readings, max_size=60)
hosts = st.dictionaries(
    st.integers(0, SPAN_S),
    st.builds(
        dict,
        cpu_pct=maybe(st.integers(0, 100).map(float)),
        disk_read_bps=maybe(st.integers(0, 10**9).map(float)),
    ),
    max_size=40,
)


def later(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def everything(*models: type[Model]) -> list[list[dict[str, Any]]]:
    return [list(m._default_manager.order_by("t").values().order_by("t")) for m in models]


def record(samples: dict[int, dict[str, Any]], uuid: str = "GPU-a") -> None:
    Sample.objects.bulk_create(Sample(gpu_id=uuid, t=T + s, **r) for s, r in samples.items())


def totals(model: type[Model]) -> dict[str, Any]:
    names = ("seen_s", "utilization_pct_s", "utilization_known_s", "memory_byte_s", "energy_j")
    sums = {name: Sum(name) for name in (*names, "memory_known_s", "power_known_s")}
    return model._default_manager.aggregate(**sums, heat=Max("temperature_max_c"))


def expected(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def known(name: str) -> list[Any]:
        return [s[name] for s in samples if s[name] is not None]

    return {
        "seen_s": len(samples),
        "utilization_pct_s": sum(known("utilization_pct")),
        "utilization_known_s": len(known("utilization_pct")),
        "memory_byte_s": sum(known("memory_used_bytes")),
        "memory_known_s": len(known("memory_used_bytes")),
        "energy_j": sum(known("power_w")),
        "power_known_s": len(known("power_w")),
        "heat": max(known("temperature_c"), default=None),
    }


class Properties(TestCase):
    """Hypothesis rolls each example's rows back, so it needs a test case of its own."""

    @settings(max_examples=40, deadline=None)
    @given(past)
    def test_minutes_and_hours_hold_what_the_samples_held(
        self, samples: dict[int, dict[str, Any]]
    ) -> None:
        gpu_row("GPU-a", START)
        record(samples)
        rollups.roll_up(later(SPAN_S + 120))
        if samples:
            assert totals(GpuMinute) == expected(list(samples.values()))
            assert totals(GpuHour) == totals(GpuMinute)
        else:
            assert not GpuMinute.objects.exists()

    @settings(max_examples=30, deadline=None)
    @given(past, hosts, st.lists(st.integers(0, SPAN_S + 200), max_size=6))
    def test_it_does_not_matter_when_and_how_often_it_is_done(
        self,
        samples: dict[int, dict[str, Any]],
        of_host: dict[int, dict[str, Any]],
        moments: list[int],
    ) -> None:
        gpu_row("GPU-a", START)
        record(samples)
        HostSample.objects.bulk_create(
            HostSample(host="box", t=T + s, **r) for s, r in of_host.items()
        )
        for moment in sorted(moments):
            rollups.roll_up(later(moment))
        rollups.roll_up(later(SPAN_S + 200))
        often = everything(GpuMinute, GpuHour, HostMinute, HostHour)
        for model in (GpuMinute, GpuHour, HostMinute, HostHour):
            model._default_manager.all().delete()
        rollups.roll_up(later(SPAN_S + 200))
        once = everything(GpuMinute, GpuHour, HostMinute, HostHour)

        assert without_ids(often) == without_ids(once)

    @settings(max_examples=30, deadline=None)
    @given(
        st.dictionaries(
            st.tuples(st.integers(1, 3), st.integers(0, 300)),
            st.tuples(st.integers(0, 60), maybe(st.integers(0, 10**6)), maybe(st.integers(0, 80))),
            max_size=40,
        )
    )
    def test_hours_of_processes_hold_what_their_minutes_held(self, minutes: Any) -> None:
        gpu = gpu_row("GPU-a", START)
        uses = {
            pid: process_use(gpu, START, pid=pid, last_seen_at=later(301 * 60)) for pid in (1, 2, 3)
        }
        start = rollups.floor(T, 60)
        ProcessMinute.objects.bulk_create(
            ProcessMinute(
                use=uses[pid],
                t=start + 60 * minute,
                sm_s=sm,
                held_s=60,
                known_s=sm,
                memory_byte_s=sm * 2,
                joules=joules,
                peak_memory_bytes=peak,
            )
            for (pid, minute), (sm, joules, peak) in minutes.items()
        )
        for _ in range(2):
            rollups.roll_up_processes(later(302 * 60))
            for pid in uses:
                assert sums(ProcessHour, pid) == sums(ProcessMinute, pid)


def sums(model: type[Model], pid: int) -> dict[str, Any]:
    names = ("sm_s", "held_s", "known_s", "memory_byte_s", "joules")
    rows = model._default_manager.filter(use__pid=pid)
    return rows.aggregate(**{f"{n}_": Sum(n) for n in names}, peak=Max("peak_memory_bytes"))


def without_ids(tables: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    return [[{k: v for k, v in row.items() if k != "id"} for row in rows] for rows in tables]


pytestmark = pytest.mark.django_db
BUSY = {"utilization_pct": 50.0, "memory_used_bytes": 8, "power_w": 100.0, "temperature_c": 60.0}


def test_what_is_unknown_is_not_added_as_zero() -> None:
    gpu_row("GPU-a", START)
    record({0: BUSY, 1: {**BUSY, "utilization_pct": None}, 2: {**BUSY, "power_w": None}})
    rollups.roll_up(later(120))
    row = GpuMinute.objects.get()

    assert (row.seen_s, row.utilization_known_s, row.utilization_pct_s) == (3, 2, 100.0)
    assert (row.power_known_s, row.energy_j) == (2, 200.0)


def test_seconds_without_a_sample_have_no_row() -> None:
    gpu_row("GPU-a", START)
    record({0: BUSY, 1800: BUSY})
    rollups.roll_up(later(3600))

    assert list(GpuMinute.objects.values_list("t", flat=True)) == [T, T + 1800]


def test_it_catches_up_after_a_day_of_downtime_a_few_rows_at_a_time() -> None:
    gpu_row("GPU-a", START)
    record(dict.fromkeys(range(0, 7200, 10), BUSY))
    with CaptureQueriesContext(connection) as queries:
        rollups.roll_up(later(86400))
    inserts = [q["sql"] for q in queries if q["sql"].startswith('INSERT INTO "monitor_gpuminute"')]

    assert GpuMinute.objects.count() == 120
    assert max(sql.count("GPU-a") for sql in inserts) <= 200


def test_a_sample_that_comes_late_is_still_counted() -> None:
    gpu_row("GPU-a", START)
    record({0: BUSY, 61: BUSY})
    rollups.roll_up(later(140))
    record({30: BUSY})
    rollups.roll_up(later(200))

    assert GpuMinute.objects.get(t=T).seen_s == 2
    assert GpuHour.objects.get().seen_s == 3


def test_the_current_minute_is_not_rolled_up() -> None:
    gpu_row("GPU-a", START)
    record(dict.fromkeys(range(100), BUSY))
    rollups.roll_up(later(100))

    assert [m.seen_s for m in GpuMinute.objects.all()] == [60]


def test_it_holds_on_when_a_gpu_or_host_has_gone() -> None:
    gpu_row("GPU-a", START)
    record({0: BUSY})
    HostSample.objects.create(host="box", t=T, cpu_pct=3.0)
    for day in range(3):
        rollups.roll_up(later(86400 * day + 120))

    assert (GpuMinute.objects.count(), HostHour.objects.count()) == (1, 1)
