from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from monitor.models import Gpu, GpuHour, HostMinute, ProcessMinute, ProcessUse
from monitor.usage.pages import chart_panels
from monitor.usage.policy.ranges import HistoryWindow, Source
from monitor.usage.rows import processes as usage_sums
from monitor.usage.rows import rollups
from monitor.usage.rows.processes import UsageTotals
from tests.monitor.past import HOST_NOTHING, NOTHING, gpu_row, process_use

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
T = int(NOW.timestamp())
WINDOW = HistoryWindow("24h", T - 86400, T, 300, Source.MINUTE, live=True)
FULL = {"sm_s": 60, "held_s": 60, "known_s": 60, "memory_byte_s": 600, "peak_memory_bytes": 10}


@pytest.fixture
def gpu() -> Gpu:
    return gpu_row("GPU-a", NOW)


def used(gpu: Gpu, *ago: int, pid: int = 1, minute: Any = FULL, **changes: Any) -> ProcessUse:
    """A process that was there in the minutes that began so many minutes ago."""
    first = NOW - timedelta(minutes=max(ago))
    use = process_use(
        gpu, first, pid=pid, last_seen_at=NOW - timedelta(minutes=min(ago) - 1), **changes
    )
    ProcessMinute.objects.bulk_create(
        ProcessMinute(use=use, t=T - 60 * minutes, **minute) for minutes in ago
    )
    return use


def test_a_persons_processes_are_added_up(gpu: Gpu) -> None:
    used(gpu, 10, 11)
    used(gpu, 5, pid=2, minute={**FULL, "sm_s": 30, "known_s": 30})
    used(gpu, 5, pid=3, user="bob")
    people = {e.subject: e.usage for e in usage_sums.by_owner("GPU-a", WINDOW)}

    assert people["alice"].sm_s == 150
    assert people["alice"].coverage_pct == pytest.approx(100 * 150 / 180)
    assert people["bob"].sm_s == 60


def test_use_of_a_job_belongs_to_its_owner_whatever_its_account(gpu: Gpu) -> None:
    used(gpu, 5, user="nobody", job_ref="1", job_owner="alice")

    assert [e.subject for e in usage_sums.by_owner("GPU-a", WINDOW)] == ["alice"]
    assert [e.subject for e in usage_sums.by_gpu("alice", WINDOW)] == [gpu]
    assert usage_sums.by_gpu("nobody", WINDOW) == []


def test_an_unknown_owner_is_none(gpu: Gpu) -> None:
    used(gpu, 5, user="")

    assert [e.subject for e in usage_sums.by_owner("GPU-a", WINDOW)] == [None]


def test_hours_and_minutes_agree(gpu: Gpu) -> None:
    used(gpu, 30, 90, 91)
    rollups.roll_up_processes(NOW)
    hours = HistoryWindow("7d", T - 7 * 86400, T, 3600, Source.HOUR, live=True)

    assert usage_sums.by_owner("GPU-a", hours) == usage_sums.by_owner("GPU-a", WINDOW)


def test_what_was_never_measured_is_not_nothing() -> None:
    assert UsageTotals(held_s=60).used_s is None
    assert UsageTotals(held_s=60, known_s=60).used_s == 0
    assert UsageTotals().used_s == 0
    assert UsageTotals(held_s=60).share_pct is None
    assert UsageTotals(held_s=60).mean_memory_bytes is None
    assert UsageTotals().coverage_pct is None


def test_time_that_was_watched_without_a_process_is_zero_and_other_time_a_gap(gpu: Gpu) -> None:
    for minutes in range(600, 500, -1):
        HostMinute.objects.create(host="box", t=T - 60 * minutes, **{**HOST_NOTHING, "seen_s": 60})
    used(gpu, 520)
    rows = usage_sums.points(usage_sums.uses_of("alice"), WINDOW)

    assert [row["t"] for row in rows] == [T - 60 * m for m in range(600, 500, -5)]
    assert {row["sm_s"] for row in rows} == {0.0, 60}
    assert {row["seen_s"] for row in rows} == {300}


def test_a_minute_of_the_past_counts_as_a_whole_though_the_window_ends_in_it(gpu: Gpu) -> None:
    for minutes in range(20, 0, -1):
        HostMinute.objects.create(host="box", t=T - 60 * minutes, **{**HOST_NOTHING, "seen_s": 60})
    used(gpu, *range(1, 21))
    past = HistoryWindow("custom", T - 1200, T - 35, 60, Source.MINUTE, live=False)

    assert {row["seen_s"] for row in usage_sums.points(usage_sums.uses_of("alice"), past)} == {60}


def test_the_current_minute_counts_as_far_as_its_rows_are_written(gpu: Gpu) -> None:
    part = {**FULL, "sm_s": 20, "held_s": 20, "known_s": 20}
    use = used(gpu, 0, minute=part)
    ProcessUse.objects.filter(pk=use.pk).update(last_seen_at=NOW + timedelta(seconds=20))
    window = HistoryWindow("1h", T - 3600, T + 32, 60, Source.MINUTE, live=True)

    (row,) = usage_sums.points(usage_sums.uses_of("alice"), window)
    assert (row["t"], row["sm_s"], row["seen_s"]) == (T, 20, 20)


def test_a_strip_names_the_main_user_of_each_hour(gpu: Gpu) -> None:
    for hours, busy in ((3, 90.0), (2, 0.0)):
        GpuHour.objects.create(
            gpu=gpu,
            t=T - 3600 * hours,
            **{
                **NOTHING,
                "seen_s": 3600,
                "utilization_pct_s": busy * 3600,
                "utilization_known_s": 3600,
            },
        )
    used(gpu, 170, 171)
    used(gpu, 172, pid=2, user="bob")
    used(gpu, 110, pid=3, user="erin", minute={**FULL, "sm_s": 0})
    rollups.roll_up_processes(NOW)
    (strip,) = chart_panels.strips([gpu], T)
    busy, idle, unknown = strip.cells[-4:-1]

    assert len(strip.cells) == 24
    assert (busy.level, busy.main and busy.main.subject) == ("5", "alice")
    assert (idle.level, idle.main and idle.main.subject, idle.idle_held) == ("0", "erin", True)
    assert (unknown.level, unknown.main, unknown.idle_held) == ("unknown", None, False)
    assert strip.owners == (("alice", 1), ("erin", 1))
