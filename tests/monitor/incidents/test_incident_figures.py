from __future__ import annotations

import pytest

from monitor.facts import incidents as rules
from monitor.incidents.rules.evaluate import log_figures
from tests.monitor.hog_traces import policies

CHANGED = policies(sustained_pct=81.0)


FIGURES: list[tuple[str, dict[str, float]]] = [
    (rules.SUSTAINED, {"gpu_util": 42.0, "threshold": 81.0}),
    (rules.FAIR_SHARE, {"gpu_util": 42.0, "threshold": 75.0}),
    (rules.MEMORY_HOG, {"memory_util": 42.0, "threshold": 80.0}),
    (rules.LEAK, {}),
    (rules.IDLE_HELD, {"gpu_util": 42.0, "threshold": 2.0}),
    (rules.ORPHANED, {}),
    (rules.CLAIMED_EMPTY, {}),
    (rules.UNUSED_GPUS, {"gpu_util": 42.0, "threshold": 2.0}),
    (rules.OVER_MEMORY, {"booked_memory_util": 42.0, "threshold": 110.0}),
    (rules.EXTRA_GPUS, {}),
    (rules.UNCLAIMED, {}),
    (rules.CPU_HOG, {"cpu_util": 42.0, "threshold": 50.0}),
]


@pytest.mark.parametrize(("rule", "figures"), FIGURES)
def test_a_log_line_names_the_measure_and_the_threshold_of_its_rule(
    rule: str, figures: dict[str, float]
) -> None:
    assert log_figures(rule, 42.0, 70.0, CHANGED) == figures


def test_every_rule_is_in_the_table() -> None:
    assert {rule for rule, _ in FIGURES} == set(rules.TITLES)


def test_an_unknown_measure_is_left_out() -> None:
    assert log_figures(rules.FAIR_SHARE, None, None, CHANGED) == {}
