"""Thresholds of reports: what counts as a violation, and prices."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.facts.thresholds import percent, threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPolicy:
    """Fair-share reports: violations, energy and costs."""

    # fmt: off
    coverage_pct: float = percent(80.0, "Minimum coverage",
        "Use that was measured less is not judged.")
    high_pct: float = percent(90.0, "Violation: high use above",
        "Use of a GPU by a process outside the queue.")
    sustained_pct: float = percent(80.0, "Violation: sustained use above",
        "Used if most of the hours are not above the high use.")
    violation_hours: float = threshold(1.0, "Violation: minimum time", unit="h", ge=0.1, le=744,
        help="Shorter use is not listed.")
    price_per_kwh: float = threshold(0.0, "Price per kWh", ge=0, le=100,
        help="0: energy costs are not shown.")
    price_per_gpu_hour: float = threshold(0.0, "Price per GPU-hour", ge=0, le=10_000,
        help="0: costs of GPU time are not shown.")
    carbon_g_per_kwh: float = threshold(0.0, "Grid intensity (g CO2 per kWh)", unit="g",
        ge=0, le=5000, help="0: emissions are not shown.")
    currency: str = threshold("EUR", "Currency", "Shown beside prices.")
    # fmt: on

    def conflicts(self) -> dict[str, str]:
        if self.sustained_pct > self.high_pct:
            return {"sustained_pct": "it must not be above the high use"}
        return {}
