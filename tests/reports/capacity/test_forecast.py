"""The forecast of demand is a straight line with an interval, or unknown."""

from __future__ import annotations

import random
from datetime import date, timedelta

from reports.capacity.policy.demand import EPOCH, LEAST_DAYS, forecast

FIRST = (date(2026, 1, 1) - EPOCH).days


def days(*values: float) -> list[tuple[int, float]]:
    return [(FIRST + i, value) for i, value in enumerate(values)]


def test_two_weeks_are_needed() -> None:
    assert forecast(days(*[1.0] * (LEAST_DAYS - 1)), 8) is None
    assert forecast(days(*[1.0] * LEAST_DAYS), 8) is not None


def test_steady_growth_reaches_the_supply_on_the_day_it_says() -> None:
    found = forecast(days(*[0.05 + i * 0.1 for i in range(60)]), 8)
    assert found is not None
    assert found.reached == date(2026, 1, 1) + timedelta(days=80)
    assert found.earliest == found.latest == found.reached
    assert round(found.slope, 6) == 0.7


def test_flat_demand_below_the_supply_never_exceeds_it() -> None:
    found = forecast(days(*[3.0] * 30), 8)
    assert found is not None
    assert (found.earliest, found.reached, found.latest) == (None, None, None)
    assert found.horizon == date(2026, 1, 30) + timedelta(days=60)


def test_noise_widens_the_interval_and_the_bounds_enclose_the_day() -> None:
    chance = random.Random(1)
    found = forecast(days(*[2 + 0.1 * i + chance.gauss(0, 1) for i in range(45)]), 8)
    assert found is not None
    assert found.earliest is not None
    assert found.reached is not None
    assert found.earliest < found.reached
    assert found.latest is None or found.reached < found.latest
    widths = [high - low for _, low, _, high in found.points]
    assert widths == sorted(widths)


def test_four_of_five_later_days_are_inside_the_interval() -> None:
    inside = total = 0
    for seed in range(300):
        chance = random.Random(seed)
        real = [20 + 0.05 * i + chance.gauss(0, 2) for i in range(42)]
        found = forecast(days(*real[:28]), 100)
        assert found is not None
        for at, low, _, high in found.points:
            i = (at - date(2026, 1, 1)).days
            if i < len(real):
                total += 1
                inside += low <= real[i] <= high
    assert 0.74 <= inside / total <= 0.86


def test_demand_is_never_predicted_below_zero() -> None:
    found = forecast(days(*[max(0.0, 5 - 0.3 * i) for i in range(30)]), 8)
    assert found is not None
    assert all(0 <= low <= middle <= high for _, low, middle, high in found.points)
