from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.facts.readings import DiskReading, FileSystemSpace, used_pct
from monitor.runtime.probes import disk_space
from scheduler.models import WatchedDisk

BYTES = st.integers(0, 2**60)


@given(used=BYTES, available=BYTES)
def test_every_kind_of_reading_counts_a_disk_in_the_same_way(used: int, available: int) -> None:
    expected = used_pct(used, available)
    reading = DiskReading(mount="/", total_bytes=used + available, free_bytes=available)

    assert FileSystemSpace(used_bytes=used, available_bytes=available).used_pct == expected
    assert reading.used_pct == expected
    assert WatchedDisk(used_bytes=used, available_bytes=available).used_pct == expected
    assert expected is None or 0 <= expected <= 100


def test_the_space_is_that_of_df(tmp_path: Path) -> None:
    table = subprocess.check_output(
        ["df", "-B1", "--output=used,avail,pcent", tmp_path], text=True
    ).splitlines()
    used, available, pct = (int(word.rstrip("%")) for word in table[1].split())

    space = disk_space.read(tmp_path)

    assert space.used_bytes == pytest.approx(used, rel=0.01)
    assert space.available_bytes == pytest.approx(available, rel=0.01)
    # df rounds up.
    assert space.used_pct == pytest.approx(pct - 0.5, abs=0.6)


def test_a_file_system_without_a_size_has_no_percentage() -> None:
    assert disk_space.read("/proc").used_pct is None
