"""Thresholds of reports: what counts as a violation, and prices."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.facts.thresholds import threshold

# %: use that was measured less is not judged.
COVERAGE_PCT = 80.0
# %: high use of a GPU by a process outside the queue, and sustained use, which counts if most of
# the hours are not above the high use. Shorter use than these hours is not listed.
HIGH_PCT, SUSTAINED_PCT, VIOLATION_HOURS = 90.0, 80.0, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPolicy:
    """Fair-share reports: energy and costs."""

    # fmt: off
    price_per_kwh: float = threshold(0.0, "Price per kWh", ge=0, le=100,
        help="0: energy costs are not shown.")
    price_per_gpu_hour: float = threshold(0.0, "Price per GPU-hour", ge=0, le=10_000,
        help="0: costs of GPU time are not shown.")
    carbon_g_per_kwh: float = threshold(0.0, "Grid intensity (g CO2 per kWh)", unit="g",
        ge=0, le=5000, help="0: emissions are not shown.")
    currency: str = threshold("EUR", "Currency", "Shown beside prices.")
    # fmt: on
