from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from monitor.facts.readings import HostCounters, HostReading
from monitor.gpus.sampling.policy import with_rates
from tests.builders import NOW, host, snapshot

LATER = NOW + timedelta(seconds=2)


def counted(busy: float, total: float, read: int = 0, **changes: object) -> HostReading:
    counters = HostCounters(
        cpu_busy_s=busy, cpu_total_s=total, disk_read_bytes=read, disk_written_bytes=0
    )
    return host(cpu_pct=None, counters=counters, **changes)


def rates(old: HostReading, new: HostReading) -> HostReading:
    return with_rates(new, snapshot(host=old), LATER)


def test_it_gives_means_since_the_last_reading() -> None:
    seen = rates(counted(10, 100), counted(11, 104, read=4096))
    assert (seen.cpu_pct, seen.disk_read_bps, seen.disk_write_bps) == (25.0, 2048.0, 0.0)


def test_they_are_unknown_at_the_first_reading() -> None:
    assert with_rates(counted(10, 100), None, LATER).cpu_pct is None


def test_they_are_unknown_after_a_restart_of_the_machine() -> None:
    assert rates(counted(10, 100), counted(11, 104, boot_id="another")).cpu_pct is None


def test_a_counter_that_went_backwards_gives_no_rate() -> None:
    seen = rates(counted(10, 100, read=9), counted(11, 104, read=4))
    assert (seen.cpu_pct, seen.disk_read_bps) == (25.0, None)


numbers = st.floats(0, 1e6)


@given(numbers, numbers, numbers, numbers)
def test_a_share_is_between_nothing_and_all(a: float, b: float, c: float, d: float) -> None:
    share = rates(counted(a, b), counted(c, d)).cpu_pct
    assert share is None or 0 <= share <= 100
