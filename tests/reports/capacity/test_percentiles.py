"""Percentiles of hourly means."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from reports.capacity.policy.demand import GpuHourFigures, gpu_profile, percentiles, profile
from tests.reports.capacity.recordings import known_gpu

UTC_ZONE = ZoneInfo("UTC")
# A Monday, 00:00 UTC.
MONDAY = 1_704_067_200
KWH = 3_600_000


def hour(t: int, pct: float | None, joules: float | None = KWH) -> GpuHourFigures:
    return GpuHourFigures(
        gpu_uuid="GPU-0", t=t, utilisation_pct=pct, memory_bytes=pct, joules=joules
    )


def test_ranks_are_values_that_occurred() -> None:
    found = percentiles(range(1, 21))
    assert (found.p50, found.p90, found.p95) == (10, 18, 19)


def test_a_rank_that_too_few_hours_support_is_unknown() -> None:
    few, some = percentiles([1, 2, 3]), percentiles(range(10))
    assert (few.count, few.p50, few.p90, few.p95) == (3, 2, None, None)
    assert (some.p90, some.p95) == (8, None)
    assert percentiles([]).p50 is None


@given(st.lists(st.floats(0, 100), min_size=20, max_size=200))
def test_so_many_percent_of_the_hours_are_not_above_a_rank(values: list[float]) -> None:
    found = percentiles(values)
    for part, value in ((0.5, found.p50), (0.9, found.p90), (0.95, found.p95)):
        assert value is not None
        assert sum(one <= value for one in values) >= part * len(values) - 1e-9


def test_hours_of_the_week_are_local_and_begin_on_monday() -> None:
    hours = [(MONDAY + week * 604_800, 5.0) for week in range(2)]
    assert profile(hours, UTC_ZONE).by_hour[0].p50 == 5.0
    assert profile(hours, ZoneInfo("Europe/Berlin")).by_hour[1].p50 == 5.0


def test_months_are_in_order_and_unknown_hours_are_left_out() -> None:
    february = MONDAY + 31 * 86_400
    hours = [(february, 3.0), (MONDAY, 1.0), (MONDAY + 3600, None)]
    found = profile(hours, UTC_ZONE)
    assert [(month, each.count) for month, each in found.by_month] == [
        ("2024-01", 1),
        ("2024-02", 1),
    ]


def test_idle_hours_and_their_energy() -> None:
    hours = [hour(0, 1.0), hour(3600, 4.9), hour(7200, 80.0), hour(10_800, None)]
    found = gpu_profile(known_gpu(), hours, UTC_ZONE)
    assert (found.idle_hours, found.known_hours, found.idle_kwh) == (2, 3, 2.0)


def test_energy_of_idle_hours_is_unknown_if_the_power_of_one_was() -> None:
    hours = [hour(0, 1.0), hour(3600, 1.0, None)]
    assert gpu_profile(known_gpu(), hours, UTC_ZONE).idle_kwh is None
