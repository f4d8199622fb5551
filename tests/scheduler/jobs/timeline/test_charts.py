from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from scheduler import charts
from scheduler.charts import Band, Bar, BarKind, TimelineGpu, UsePiece
from scheduler.templatetags.job_tags import bar_words

GIB = 1024**3
NOW = 100_000
GPU = TimelineGpu("GPU-0", 0, "box")
stretch = st.tuples(st.integers(0, 500), st.integers(1, 100)).map(lambda s: (s[0], s[0] + s[1]))
stretches = st.lists(stretch, max_size=12)
kinds = st.sampled_from([BarKind.JOB, BarKind.USE])


def bar(begin: int = 0, end: int | None = 100, **facts: object) -> Bar:
    known = {"gpu_uuid": "GPU-0", "kind": BarKind.JOB, "owner": "alice", "label": "1 train"}
    return Bar(begin=begin, end=end, **(known | facts))  # type: ignore[arg-type]


def piece(begin: int, end: int, **facts: object) -> UsePiece:
    known = {
        "gpu_uuid": "GPU-0",
        "owner": "alice",
        "job": None,
        "used_pct": 80.0,
        "memory_bytes": 10.0 * GIB,
    }
    return UsePiece(begin=begin, end=end, **(known | facts))  # type: ignore[arg-type]


def seconds(of: tuple[tuple[int, int], ...]) -> set[int]:
    return {second for begin, end in of for second in range(begin, end)}


@given(stretches)
def test_joined_stretches_cover_the_same_time_without_overlap(spans: list[tuple[int, int]]) -> None:
    joined = charts.joined(spans)

    assert seconds(joined) == seconds(tuple(spans))
    assert all(a[1] < b[0] for a, b in pairwise(joined))


@given(stretches, stretches)
def test_without_removes_exactly_what_is_taken(
    spans: list[tuple[int, int]], taken: list[tuple[int, int]]
) -> None:
    left = charts.without(charts.joined(spans), taken)

    assert seconds(left) == seconds(tuple(spans)) - seconds(tuple(taken))


@given(st.lists(stretch, max_size=charts.MOST_LANES))
def test_bars_that_overlap_get_different_lanes(spans: list[tuple[int, int]]) -> None:
    [row] = charts.rows([GPU], [bar(*s) for s in spans], [])
    for i, (one, lane) in enumerate(row.bars):
        for other, other_lane in row.bars[i + 1 :]:
            overlap = one.begin < (other.end or 0) and other.begin < (one.end or 0)
            assert not overlap or lane != other_lane
    assert all(lane < row.lanes for _, lane in row.bars)


def test_a_job_that_goes_on_keeps_its_lane_until_its_expected_end() -> None:
    runs, waits = bar(0, None, expected_end=50), bar(50, None, kind=BarKind.EXPECTED, job=2)
    [row] = charts.rows([GPU], [runs, waits], [])

    assert [lane for _, lane in row.bars] == [0, 0]


owned = st.tuples(
    st.integers(0, 80_000), st.integers(1, 9000), st.sampled_from(["alice", "bob", None]), kinds
).map(lambda s: bar(s[0], s[0] + s[1], owner=s[2], kind=s[3], job=None))


@given(st.lists(owned, max_size=20))
def test_the_bars_of_a_row_cover_the_time_of_its_jobs_and_processes(bars: list[Bar]) -> None:
    row = charts.condensed(bars, most=6)

    for owner in ("alice", "bob", None):
        shown = [s for b in row if b.owner == owner for s in b.stretches]
        assert charts.joined(shown) == charts.joined(
            (b.begin, b.end or 0) for b in bars if b.owner == owner
        )
    assert sum(b.count for b in row) == len(bars)
    assert all(s[0] >= b.begin and s[1] <= (b.end or 0) for b in row for s in b.stretches)
    assert len(row) <= 6


def test_a_dense_span_is_one_bar_with_its_count_and_a_long_job_keeps_its_own() -> None:
    items = [bar(i * 40, i * 40 + 30) for i in range(125)]
    long, runs = bar(0, 5000, job=7), bar(9000, None, job=8)
    [row] = charts.rows([GPU], [*items, long, runs], [])

    assert sorted((b.label, b.count, b.job) for b, _ in row.bars) == [
        ("1 train", 1, 7),
        ("1 train", 1, 8),
        ("125 jobs", 125, None),
    ]
    [dense] = [b for b, _ in row.bars if b.count > 1]
    assert sum(end - begin for begin, end in dense.taken) == 125 * 30


def test_many_gpus_have_fewer_bars_each() -> None:
    gpus = [TimelineGpu(f"g{n}", n, "box") for n in range(64)]
    bars = [bar(t, t + 100, gpu_uuid=gpu.uuid) for gpu in gpus for t in range(0, 80_000, 1000)]

    rows = charts.rows(gpus, bars, [])

    assert {len(row.bars) <= 20 for row in rows} == {True}
    assert {sum(b.count for b, _ in row.bars) for row in rows} == {80}
    assert len(charts.rows(gpus[:8], bars, [])[0].bars) == 80


def test_jobs_of_less_than_a_second_are_joined_and_told() -> None:
    [row] = charts.rows([GPU], [bar(NOW + i, NOW + i, state="succeeded") for i in range(125)], [])

    [(dense, _)] = row.bars
    assert bar_words(dense) == "125 jobs, alice, succeeded, together 0 s of 2 min"


def test_expected_runs_are_joined_too() -> None:
    waits = [bar(i * 40, None, kind=BarKind.EXPECTED, expected_end=i * 40 + 30) for i in range(125)]
    [row] = charts.rows([GPU], waits, [])

    assert [(b.label, b.end, b.expected_end) for b, _ in row.bars] == [("125 jobs", None, 4990)]


def test_use_outside_the_queue_becomes_one_bar_over_short_pauses() -> None:
    bars, _ = charts.of_pieces([piece(0, 600), piece(660, 1200), piece(5000, 5300)], NOW, NOW)

    assert [(b.begin, b.end) for b in bars] == [(0, 1200), (5000, 5300)]


def test_use_that_reaches_now_goes_on() -> None:
    [spans], _ = charts.of_pieces([piece(NOW - 600, NOW)], NOW, NOW - 60)

    assert spans.end is None


def test_memory_that_nothing_uses_is_idle() -> None:
    [spans], _ = charts.of_pieces([piece(0, 600), piece(600, 1200, used_pct=1.0)], NOW, NOW)

    assert spans.idle == ((600, 1200),)


def test_what_was_not_measured_or_holds_little_is_not_called_idle() -> None:
    unknown, small = piece(0, 600, used_pct=None), piece(600, 1200, used_pct=0.0, memory_bytes=1e6)
    [spans], _ = charts.of_pieces([unknown, small], NOW, NOW)

    assert spans.idle == ()


def test_a_second_process_that_computes_ends_the_idle_time_of_its_user() -> None:
    [spans], _ = charts.of_pieces([piece(0, 600, used_pct=0.0), piece(300, 600)], NOW, NOW)

    assert spans.idle == ((0, 300),)


def test_a_job_gets_the_idle_time_of_its_processes() -> None:
    used, idle = charts.of_pieces([piece(0, 600, used_pct=0.0, job=7)], NOW, NOW)

    assert used == []
    assert charts.with_idle(bar(100, 500, job=7), idle, NOW).idle == ((100, 500),)


def test_a_band_is_on_the_row_of_its_gpu() -> None:
    band = Band(gpu_uuid="GPU-1", holder="alice", kept=True, begin=0, end=10)
    one, other = charts.rows([GPU, TimelineGpu("GPU-1", 1, "box")], [], [band])

    assert (one.bands, other.bands) == ((), (band,))


@given(st.integers(-(10**6), 10**6), st.integers(0, 10**6))
def test_places_stay_within_the_picture(t: int, length: int) -> None:
    span = charts.span(NOW)

    assert 0 <= span.x(t) <= 100
    assert 0 < span.width(t, t + length) <= 100
