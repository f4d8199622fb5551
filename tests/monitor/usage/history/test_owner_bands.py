from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from monitor.models import Gpu, ProcessMinute
from monitor.usage.pages import chart_panels as owner_bands
from monitor.usage.pages.chart_panels import OwnerShare
from monitor.usage.policy.ranges import HistoryWindow, Source
from tests.builders import GIB
from tests.monitor.past import gpu_row, process_use

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
T = int(NOW.timestamp())
HOUR = HistoryWindow("1h", T - 3600, T, 60, Source.MINUTE, live=True)


@pytest.fixture
def gpu() -> Gpu:
    return gpu_row("GPU-a", NOW)


def worked(
    gpu: Gpu, user: str, busy_s: float, gib: float, pid: int, minutes: Iterable[int]
) -> None:
    """A process that was busy for so many seconds of each of the minutes before NOW."""
    ago = list(minutes)
    first, last = (NOW - timedelta(minutes=n) for n in (max(ago), min(ago) - 1))
    use = process_use(gpu, first, pid=pid, user=user, last_seen_at=last)
    ProcessMinute.objects.bulk_create(
        ProcessMinute(
            use=use, t=T - 60 * n, sm_s=busy_s, held_s=60, known_s=60, memory_byte_s=60 * gib * GIB
        )
        for n in ago
    )


def gpu_minutes(minutes: Iterable[int], known_s: int = 60) -> list[dict[str, Any]]:
    known = {"utilization_known_s": known_s, "memory_known_s": known_s}
    return [{"t": T - 60 * n, **known} for n in sorted(minutes, reverse=True)]


def values(share: OwnerShare) -> list[float | None]:
    return [value for _, value in share.points]


def test_use_and_memory_of_each_owner_are_those_of_the_step(gpu: Gpu) -> None:
    worked(gpu, "alice", 45, 40, 1, [2, 3])
    worked(gpu, "bob", 6, 10, 2, [2])
    shares = owner_bands.shares("GPU-a", gpu_minutes([2, 3]), HOUR)

    assert [(s.owner, values(s)) for s in shares["utilization_pct"]] == [
        ("alice", [75, 75]),
        ("bob", [0, 10]),
    ]
    assert [(s.owner, values(s)) for s in shares["memory_used_bytes"]] == [
        ("alice", [40, 40]),
        ("bob", [0, 10]),
    ]


def test_a_step_without_readings_of_the_gpu_is_a_gap(gpu: Gpu) -> None:
    worked(gpu, "alice", 45, 40, 1, [2])
    rows = gpu_minutes([3], known_s=0) + gpu_minutes([2])
    (share,) = owner_bands.shares("GPU-a", rows, HOUR)["utilization_pct"]

    assert values(share) == [None, 75]


def test_a_step_that_is_not_over_is_left_out(gpu: Gpu) -> None:
    worked(gpu, "alice", 30, 40, 1, [1, 2])
    window = HistoryWindow("1h", T - 3600, T - 20, 60, Source.MINUTE, live=True)
    (share,) = owner_bands.shares("GPU-a", gpu_minutes([1, 2]), window)["utilization_pct"]

    assert values(share) == [50]


def test_owners_beyond_the_largest_share_a_band(gpu: Gpu) -> None:
    for n in range(8):
        worked(gpu, f"user{n}", 9 - n, 1, n + 1, [2])
    shares = owner_bands.shares("GPU-a", gpu_minutes([2]), HOUR)["utilization_pct"]

    assert [share.label for share in shares] == [*(f"user{n}" for n in range(5)), "3 others"]
    assert values(shares[-1]) == [pytest.approx(100 * (4 + 3 + 2) / 60)]


def test_an_owner_who_only_holds_memory_has_no_band_in_the_chart_of_the_use(gpu: Gpu) -> None:
    worked(gpu, "erin", 0, 40, 1, [2])
    shares = owner_bands.shares("GPU-a", gpu_minutes([2]), HOUR)

    assert shares["utilization_pct"] == ()
    assert [share.owner for share in shares["memory_used_bytes"]] == ["erin"]
