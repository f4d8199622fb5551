from __future__ import annotations

from datetime import timedelta

import pytest

from monitor.pages.live import sparklines
from monitor.pages.live.sparklines import SparklineCache
from tests.builders import NOW


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The GPUs whose sparkline was drawn, in order."""
    found: list[str] = []

    def draw(uuid: str, now: object) -> sparklines.SparklinePath:
        found.append(uuid)
        return sparklines.SparklinePath("", "")

    monkeypatch.setattr(sparklines, "draw", draw)
    return found


def test_sparklines_are_drawn_once_a_minute_a_few_at_a_time(drawn: list[str]) -> None:
    sparks, gpus = SparklineCache(), [f"GPU-{i}" for i in range(30)]
    for second in range(60):
        sparks.get(gpus, NOW + timedelta(seconds=second))
    assert sorted(drawn) == sorted(gpus)

    drawn.clear()
    sparks.get([*gpus, "GPU-new"], NOW + timedelta(seconds=61))
    assert len(drawn) == 1 + sparklines.SPARKS_AT_ONCE


def test_all_sparklines_are_redrawn_after_a_pause(drawn: list[str]) -> None:
    sparks, gpus = SparklineCache(), [f"GPU-{i}" for i in range(30)]
    sparks.get(gpus, NOW)
    drawn.clear()
    sparks.get(gpus, NOW + timedelta(hours=1))

    assert len(drawn) == 30
