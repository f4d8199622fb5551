"""Percentiles of hourly means: over all hours, by hour of the week, and by month.

Nearest rank: the smallest value that at least so many percent of the hours do not exceed. A rank
needs as many hours as make it differ from the maximum: 2 for p50, 10 for p90, 20 for p95.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, tzinfo
from math import ceil

from reports.capacity.facts import (
    CapacityGpu,
    DemandHour,
    GpuHourFigures,
    GpuProfile,
    Percentiles,
    Profile,
)

HOURS_OF_WEEK = 168
# Below this mean utilisation, an hour of a GPU counts as idle.
IDLE_PCT = 5.0
JOULES_PER_KWH = 3_600_000


def rank(ranked: Sequence[float], part: float) -> float | None:
    """The nearest rank of sorted values; None = there are none."""
    return ranked[max(0, ceil(part * len(ranked)) - 1)] if ranked else None


def percentiles(values: Iterable[float]) -> Percentiles:
    ranked = sorted(values)
    count = len(ranked)
    return Percentiles(
        count=count,
        p50=rank(ranked, 0.5) if count >= 2 else None,
        p90=rank(ranked, 0.9) if count >= 10 else None,
        p95=rank(ranked, 0.95) if count >= 20 else None,
    )


def profile(hours: Iterable[tuple[int, float | None]], zone: tzinfo) -> Profile:
    """Of (epoch seconds, mean of the hour); unknown hours are left out."""
    by_hour: list[list[float]] = [[] for _ in range(HOURS_OF_WEEK)]
    by_month: dict[str, list[float]] = {}
    values: list[float] = []
    for t, value in hours:
        if value is None:
            continue
        local = datetime.fromtimestamp(t, zone)
        by_hour[local.weekday() * 24 + local.hour].append(value)
        by_month.setdefault(f"{local:%Y-%m}", []).append(value)
        values.append(value)
    return Profile(
        whole=percentiles(values),
        by_hour=tuple(map(percentiles, by_hour)),
        by_month=tuple((month, percentiles(by_month[month])) for month in sorted(by_month)),
    )


def gpu_profile(gpu: CapacityGpu, hours: Sequence[GpuHourFigures], zone: tzinfo) -> GpuProfile:
    """Of the hours of this GPU."""
    measured = [hour for hour in hours if hour.utilisation_pct is not None]
    idle = [hour for hour in measured if (hour.utilisation_pct or 0.0) < IDLE_PCT]
    joules = [hour.joules for hour in idle if hour.joules is not None]
    # Some idle hours without power make the sum unknown, not smaller.
    is_known = len(joules) == len(idle) and bool(measured)
    return GpuProfile(
        gpu=gpu,
        utilisation=profile(((hour.t, hour.utilisation_pct) for hour in hours), zone),
        memory=profile(((hour.t, hour.memory_bytes) for hour in hours), zone),
        idle_hours=len(idle),
        known_hours=len(measured),
        idle_kwh=sum(joules) / JOULES_PER_KWH if is_known else None,
    )


def queue_profile(hours: Iterable[DemandHour], zone: tzinfo) -> Profile:
    """Of the GPUs that waiting jobs requested."""
    return profile(((hour.t, hour.waiting) for hour in hours), zone)


def fleet_hours(gpus: Sequence[Sequence[GpuHourFigures]]) -> list[GpuHourFigures]:
    """The mean GPU of each hour, of the GPUs that are known in it."""
    by_hour: dict[int, list[GpuHourFigures]] = {}
    for hours in gpus:
        for hour in hours:
            by_hour.setdefault(hour.t, []).append(hour)
    return [
        GpuHourFigures(
            gpu_uuid="",
            t=t,
            utilisation_pct=_mean(reading.utilisation_pct for reading in readings),
            memory_bytes=_mean(reading.memory_bytes for reading in readings),
            joules=None,
        )
        for t, readings in sorted(by_hour.items())
    ]


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
