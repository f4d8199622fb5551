from __future__ import annotations

from datetime import timedelta

import pytest

from monitor import gpu_charts, history, store
from monitor.history import Bucket, Sparks
from tests.builders import GIB, NOW, gpu, gpu_uuid, snapshot

T = int(NOW.timestamp())


def past(*utilization: float | None, every_s: int = 1) -> None:
    """Readings up to now, the last one at NOW."""
    steps = enumerate(reversed(utilization))
    store.record_history(
        snapshot([gpu(utilization_pct=value)], at=NOW - timedelta(seconds=i * every_s))
        for i, value in steps
    )


@pytest.mark.django_db
def test_a_bucket_is_the_mean_of_its_seconds() -> None:
    # NOW is a full minute: the reading at it opens the next bucket.
    past(10.0, 20.0, 90.0, 7.0)

    assert [(b.t, b.utilization_pct) for b in history.buckets(gpu_uuid(), T - 10, T, 60)] == [
        (T - 60, 40.0),
        (T, 7.0),
    ]


@pytest.mark.django_db
def test_unknown_seconds_count_for_nothing() -> None:
    past(None, 50.0, None)
    known = [b.utilization_pct for b in history.buckets(gpu_uuid(), T - 10, T, 3600)]

    assert [value for value in known if value is not None] == [50.0]


@pytest.mark.django_db
def test_seconds_without_a_reading_have_no_bucket() -> None:
    past(1.0, 1.0, every_s=300)

    assert len(history.buckets(gpu_uuid(), T - 600, T, 10)) == 2


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The GPUs whose sparkline was drawn, in order."""
    found: list[str] = []

    def draw(uuid: str, now: object) -> history.Spark:
        found.append(uuid)
        return history.Spark("", "")

    monkeypatch.setattr(history, "draw", draw)
    return found


def test_sparklines_are_drawn_once_a_minute_a_few_at_a_time(drawn: list[str]) -> None:
    sparks, gpus = Sparks(), [f"GPU-{i}" for i in range(30)]
    for second in range(60):
        sparks.get(gpus, NOW + timedelta(seconds=second))
    assert sorted(drawn) == sorted(gpus)

    drawn.clear()
    sparks.get([*gpus, "GPU-new"], NOW + timedelta(seconds=61))
    assert len(drawn) == 1 + history.SPARKS_AT_ONCE


def test_all_sparklines_are_drawn_anew_after_a_pause(drawn: list[str]) -> None:
    sparks, gpus = Sparks(), [f"GPU-{i}" for i in range(30)]
    sparks.get(gpus, NOW)
    drawn.clear()
    sparks.get(gpus, NOW + timedelta(hours=1))

    assert len(drawn) == 30


def bucket(t: int = T - 60, **changes: float | None) -> Bucket:
    facts: dict[str, float | None] = {
        "utilization_pct": 50.0,
        "memory_used_bytes": 40 * GIB,
        "power_w": 300.0,
        "temperature_c": 60.0,
    }
    return Bucket(t=t, **(facts | changes))


def test_scales_come_from_totals_and_limits() -> None:
    shown = gpu_charts.history([bucket()], T - 3600, T, 10, 80 * GIB, 700.0)

    assert [chart.plot.y_ticks[-1].value for chart in shown.charts] == [100, 80, 800, 100]
    assert shown.charts[2].limit_text == "limit 700 W"


def test_a_scale_without_a_total_fits_what_was_seen() -> None:
    shown = gpu_charts.history([bucket()], T - 3600, T, 10, None, None)

    assert [chart.plot.y_ticks[-1].value for chart in shown.charts] == [100, 40, 320, 100]
    assert shown.charts[2].plot.limit_y is None


def test_the_table_behind_the_charts_is_short() -> None:
    many = [bucket(T - 3600 + 10 * i) for i in range(360)]

    assert len(gpu_charts.history(many, T - 3600, T, 10, None, None).table) == 60


def test_the_unknown_stays_unknown_in_the_figures() -> None:
    shown = gpu_charts.history([bucket(power_w=None)], T - 3600, T, 10, None, None)

    assert shown.table == ((T - 60, 50, 40.0, None, 60),)
