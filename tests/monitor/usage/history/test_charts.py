from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from monitor.usage import charts

numbers = st.floats(min_value=0, max_value=1e6, allow_nan=False)
series = st.lists(
    st.tuples(st.integers(min_value=0, max_value=3600), st.none() | numbers), max_size=60
).map(lambda points: sorted(dict(points).items()))


def coordinates(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path)]


@given(series, st.floats(min_value=1, max_value=1e5))
def test_every_line_stays_inside_its_plot(points: list[charts.Point], top: float) -> None:
    plot = charts.plot(points, 0, 3600, top, 10)

    for x, y in coordinates(plot.line) + coordinates(plot.area):
        assert 0 <= x <= charts.PLOT_W
        assert 0 <= y <= charts.PLOT_H


@given(series)
def test_every_known_point_is_drawn_once(points: list[charts.Point]) -> None:
    drawn = [point for run in charts.runs(points, 25) for point in run]

    assert drawn == [(t, value) for t, value in points if value is not None]


@given(series)
def test_no_line_crosses_a_gap(points: list[charts.Point]) -> None:
    for run in charts.runs(points, 25):
        assert all(b[0] - a[0] <= 25 for a, b in pairwise(run))


def test_an_unknown_value_breaks_the_line() -> None:
    plot = charts.plot([(0, 1.0), (10, 2.0), (20, None), (30, 3.0), (40, 4.0)], 0, 40, 4, 10)

    assert plot.line.count("M") == 2


def test_a_point_alone_is_a_dot() -> None:
    plot = charts.plot([(0, 1.0), (10, None), (20, 2.0), (30, 3.0)], 0, 40, 4, 10)

    assert plot.dots == ((0.0, 75.0),)


def test_gaps_are_marked_at_both_ends_and_between() -> None:
    plot = charts.plot([(300, 1.0), (310, 1.0), (600, 1.0), (610, 1.0)], 0, 1000, 4, 10)

    assert plot.gaps == ((0.0, 300.0), (310.0, 290.0), (610.0, 390.0))


def test_no_readings_at_all_are_one_gap() -> None:
    assert charts.plot([], 0, 100, 1, 1).gaps == ((0.0, 1000.0),)


@given(st.floats(min_value=1e-3, max_value=1e9))
def test_a_scale_holds_its_highest_value_and_wastes_little(value: float) -> None:
    top = charts.nice_ceiling(value)

    assert value <= top * (1 + 1e-9)
    assert top <= value * 1.7


@given(st.floats(min_value=0, max_value=1e6))
def test_the_scale_of_a_count_has_whole_quarters(value: float) -> None:
    top = charts.count_ceiling(value)

    assert top >= value * (1 - 1e-9)
    assert all(tick.value.is_integer() for tick in charts.value_ticks(top))


def test_a_scale_has_round_quarters() -> None:
    assert [tick.value for tick in charts.value_ticks(charts.nice_ceiling(700))] == [
        0, 200, 400, 600, 800,
    ]  # fmt: skip


@given(
    st.integers(min_value=0, max_value=2_000_000_000),
    st.integers(min_value=60, max_value=864_000),
    st.sampled_from([0, 3600, 19800, -12600]),
)
def test_time_ticks_are_round_few_and_inside(since: int, span: int, offset: int) -> None:
    ticks = charts.time_ticks(since, since + span, offset=offset)

    assert 1 <= len(ticks) <= 8
    assert all(0 <= tick.pct <= 100 for tick in ticks)
    assert all((tick.value + offset) % 10 == 0 for tick in ticks)


def test_the_limit_is_left_out_when_it_lies_above_the_scale() -> None:
    assert charts.plot([(0, 1.0)], 0, 10, 4, 1, limit=8).limit_y is None
    assert charts.plot([(0, 1.0)], 0, 10, 4, 1, limit=3).limit_y == 25.0


def test_a_sparkline_of_one_minute_can_be_seen() -> None:
    line, area = charts.spark([(1800, 50.0)], 0, 3600, 60)

    assert line == "M60 16L61 16"
    assert area.endswith("Z")


def test_a_sparkline_of_nothing_is_empty() -> None:
    assert charts.spark([], 0, 3600, 60) == ("", "")


WIDE, STEP = 60.0, 300


def stack(*series: list[float | None]) -> list[charts.Band]:
    """Values of an hour in steps of five minutes, on a scale to 100."""
    points = [[(STEP * i + STEP / 2, value) for i, value in enumerate(of)] for of in series]
    return charts.stacked(points, [WIDE] * len(series), 0, 3600, 100, STEP)


def test_a_band_stands_on_the_one_before_it() -> None:
    lower, upper = stack([40.0] * 12, [30.0] * 12)

    assert {y for _, y in coordinates(lower.path)} == {60, 100}
    assert {y for _, y in coordinates(upper.path)} == {30, 60}


def test_bands_fill_the_whole_steps_and_end_at_a_gap() -> None:
    (band,) = stack([40.0] * 4 + [None] * 4 + [40.0] * 4)

    assert sorted({x for x, _ in coordinates(band.path) if x in (0, 333.4, 666.6, 1000)})[0] == 0
    assert not [x for x, _ in coordinates(band.path) if 340 < x < 660]
    assert max(x for x, _ in coordinates(band.path)) == 1000


def test_a_name_stands_in_a_band_only_where_it_has_room() -> None:
    wide, short, thin = stack([40.0] * 12, [0.0] * 6 + [30.0] + [0.0] * 5, [5.0] * 12)

    assert wide.label_at == (500.0, 80.0)
    assert short.label_at is None
    assert thin.label_at is None


def test_an_owner_without_any_has_no_band() -> None:
    assert stack([0.0] * 12)[0].path == ""
