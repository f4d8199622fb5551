"""Times without readings: until when a host is known to have run."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from monitor.gpus.rows import hosts
from monitor.models import HostSample
from tests.builders import NOW

pytestmark = pytest.mark.django_db
T = int(NOW.timestamp())


def readings(*seconds: int) -> None:
    HostSample.objects.bulk_create(HostSample(host="gpubox", t=T + second) for second in seconds)


def at(second: int) -> datetime:
    return NOW + timedelta(seconds=second)


@pytest.mark.parametrize(
    ("seconds", "known_until"),
    [
        ([], None),
        ([-3, -2, -1], None),
        ([-19, -18, -3, -1], None),
        ([-100, -99, -1], at(-98)),
        ([-100, -9], at(-99)),
        ([-100, -99], at(-98)),
        # Long over: the loops have looked at their host meanwhile.
        ([-100, *range(-12, 0)], None),
        ([-100, *range(-9, 0), 60], at(-99)),
    ],
)
def test_a_pause_counts_until_the_loops_have_looked(
    seconds: list[int], known_until: datetime | None
) -> None:
    readings(*seconds)

    assert hosts.read_before_pause("gpubox", NOW) == known_until
    assert hosts.read_before_pause("east", NOW) is None


def test_a_host_is_known_until_the_end_of_its_newest_second() -> None:
    readings(-7, -5, 3600)

    assert hosts.read_until("gpubox", NOW) == at(-4)
    assert hosts.read_until("east", NOW) is None
