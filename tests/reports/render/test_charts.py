from __future__ import annotations

import re

import pytest

from reports.figures.facts import TrendPoint, UserFigures
from reports.render import charts
from tests.builders import NOW
from tests.processes.service import ROOT


@pytest.mark.parametrize(
    ("most", "ticks"),
    [
        (236.0, [0, 50, 100, 150, 200, 250]),
        (7.0, [0, 2, 4, 6, 8]),
        (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.03, [0, 0.01, 0.02, 0.03]),
    ],
)
def test_axes_have_round_ticks(most: float, ticks: list[float]) -> None:
    assert charts.round_ticks(most) == pytest.approx(ticks)


def test_the_name_of_a_point_at_the_right_edge_is_to_its_left() -> None:
    assert 'text-anchor="start"' in charts.beside(100, 50, "a long name 14")
    assert 'text-anchor="end"' in charts.beside(charts.WIDTH - 60, 50, "a long name 14")


def test_shapes_have_no_class_that_the_page_gives_a_size() -> None:
    # The style sheet may set width and height of any shape, and wins over its attributes.
    before = TrendPoint(since=NOW, used=2.0, efficiency=None)
    row = UserFigures(user="alice", used=3.0, trend=(before,))
    classes = set(re.findall(r'class="([\w-]+)"', charts.spark(row)))
    styles = (ROOT / "static" / "app.css").read_text()

    assert classes == {"trend", "trend-bar"}
    for name in classes:
        rules = re.findall(rf"\.{name}\b[^{{}}]*{{([^}}]*)}}", styles)
        assert not any(re.search(r"(^|[;\s])(width|height):", rule) for rule in rules), name
