from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from monitor.models import Gpu
from monitor.usage.pages import content
from monitor.usage.pages.chart_panels import History, coverage, history
from monitor.usage.policy.ranges import HistoryWindow, Source
from scheduler.queue.planner.sizing import GpuMinute, summarise
from tests.builders import GIB, NOW

T = int(NOW.timestamp())
HOUR = HistoryWindow("1h", T - 3600, T, 10, Source.RAW, live=True)
DAY = HistoryWindow("24h", T - 86400, T, 300, Source.MINUTE, live=True)


def row(t: int = T - 60, **changes: Any) -> dict[str, Any]:
    """Ten seconds: half busy, 40 GiB, 300 W, 60 °C."""
    facts: dict[str, Any] = {
        "t": t,
        "seen_s": 10,
        "utilization_pct_s": 500.0,
        "utilization_known_s": 10,
        "utilization_max_pct": 80.0,
        "memory_byte_s": 400 * GIB,
        "memory_known_s": 10,
        "memory_max_bytes": 41 * GIB,
        "energy_j": 3000.0,
        "power_known_s": 10,
        "power_max_w": 310.0,
        "temperature_max_c": 60.0,
    }
    return facts | changes


def shown(*rows: dict[str, Any], window: HistoryWindow = HOUR, **gpu: Any) -> History:
    facts = {"memory_total_bytes": 80 * GIB, "power_limit_w": 700.0} | gpu
    return history(
        content.gpu_panels(Gpu(**facts), window, 85.0, {}), rows, window, coverage(rows, window)
    )


def tops(found: History) -> list[float]:
    return [chart.frame.y_ticks[-1].value for chart in found.charts]


def test_scales_come_from_totals_and_limits() -> None:
    found = shown(row())

    assert tops(found) == [100, 80, 800, 100]
    assert found.charts[2].limit_text == "limit 700 W"
    assert found.charts[3].limit_text == "too hot at 85 °C"
    assert found.charts[3].frame.limit_y == 15.0


def test_a_scale_without_a_total_fits_what_was_seen() -> None:
    found = shown(row(), memory_total_bytes=None, power_limit_w=None)

    assert tops(found) == [100, 40, 320, 100]
    assert found.charts[2].frame.limit_y is None


def test_the_table_behind_the_charts_is_short() -> None:
    assert len(shown(*(row(T - 3600 + 10 * i) for i in range(360))).table) == 60


def test_the_unknown_stays_unknown_in_the_figures() -> None:
    found = shown(row(energy_j=0.0, power_known_s=0, power_max_w=None))

    assert found.table == ((T - 60, 50, 40.0, None, 60),)
    assert json.loads(found.points) == [[T - 60, 50.0, 40.0, None, 60.0]]


def test_a_mean_is_that_of_the_seconds_that_are_known() -> None:
    assert shown(row(utilization_known_s=5)).table[0][1] == 100


def test_long_steps_show_the_highest_second_beside_the_mean() -> None:
    found = shown(row(), window=DAY)

    assert [line.label for line in found.charts[0].lines] == ["mean", "highest"]
    assert found.heads[:2] == ("Utilisation, mean, %", "Utilisation, highest, %")
    assert found.table[0][1:3] == (50, 80)


def test_a_rollup_that_is_missing_is_a_gap() -> None:
    rows = [row(DAY.since + 300 * i) for i in range(288) if i != 100]
    gaps = shown(*rows, window=DAY).charts[0].frame.gaps

    assert len(gaps) == 1


def test_coverage_counts_the_seconds_with_readings() -> None:
    assert shown(row(), row(T - 30)).coverage_pct == 100 * 20 / 3600
    assert shown(*(row(seen_s=400) for _ in range(10))).coverage_pct == 100.0


def test_the_chart_of_a_short_job_shows_the_figure_of_its_result() -> None:
    begin, end = NOW, NOW + timedelta(seconds=32)
    minute = {"t": T // 60 * 60, "seen_s": 60, "held_s": 32.0, "known_s": 32.0, "sm_s": 15.0}
    (cut,) = content.while_running([minute], [(begin, end)], 60, end)

    assert content.job_panels(1, None)[0].lines[0].value(cut) == pytest.approx(100 * 15 / 32)
    figure = summarise([GpuMinute(gpu_uuid="GPU-0", t=minute["t"], sm_s=15.0, held_s=32.0,
                                  known_s=32.0, memory_bytes=None, joules=None)], 32.0)  # fmt: skip
    assert figure.mean_pct == pytest.approx(100 * 15 / 32)


def test_steps_are_cut_to_each_run_of_a_requeued_job() -> None:
    start = T // 60 * 60
    at = [datetime.fromtimestamp(start + seconds, UTC) for seconds in (30, 90, 150, 200)]
    rows = [{"t": start + 60 * index, "seen_s": 60} for index in range(5)]

    cut = content.while_running(rows, [(at[0], at[1]), (at[2], None)], 60, at[3])

    assert [(row["t"] - start, row["seen_s"]) for row in cut] == [
        (0, 30),
        (60, 30),
        (120, 30),
        (180, 20),
    ]


def test_a_moment_at_the_end_of_a_step_gives_no_peak() -> None:
    # Use is added up in whole readings, so 0.2 s may show the energy of one second.
    start = T // 60 * 60
    begin, end = (datetime.fromtimestamp(start + seconds, UTC) for seconds in (59.8, 120))
    rows = [{"t": start, "seen_s": 60, "joules": 600.0}, {"t": start + 60, "seen_s": 60}]

    assert [row["t"] for row in content.while_running(rows, [(begin, end)], 60, end)] == [
        start + 60
    ]
    assert len(content.while_running(rows[:1], [(begin, end)], 60, end)) == 1
