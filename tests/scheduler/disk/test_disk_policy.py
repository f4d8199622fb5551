from __future__ import annotations

import pytest

from scheduler.catalogue import PROFILES
from scheduler.disk.policy import (
    DiskLevel,
    DiskPolicy,
    DiskSpace,
    FolderUse,
    FullDisk,
    full_blockers,
    is_near,
    level,
)
from scheduler.facts.blockers import BlockerCode, from_row, to_row
from scheduler.queue.wording import text
from tests.builders import GIB

# By the percentage alone.
POLICY = DiskPolicy(
    warn_pct=60,
    clean_pct=65,
    block_pct=70,
    block_free_gib=1_000_000,
    block_free_pct=100,
)


def space(used_pct: float, device: str = "8:1") -> DiskSpace:
    used = round(used_pct * GIB)
    return DiskSpace(device=device, used_bytes=used, available_bytes=100 * GIB - used)


@pytest.mark.parametrize(
    ("used", "before", "after"),
    [
        (60.0, "normal", "normal"),
        (60.1, "normal", "warning"),
        (59.5, "warning", "warning"),
        (58.9, "warning", "normal"),
        (65.1, "normal", "cleaning"),
        (70.1, "warning", "blocked"),
        (69.5, "blocked", "blocked"),
        (69.5, "cleaning", "cleaning"),
        (64.5, "blocked", "cleaning"),
        (10.0, "blocked", "normal"),
    ],
)
def test_a_level_begins_above_its_threshold_and_ends_a_little_below(
    used: float, before: str, after: str
) -> None:
    assert level(space(used), POLICY, DiskLevel(before)) == after


def disk_of(total_gib: float, free_gib: float) -> DiskSpace:
    free = round(free_gib * GIB)
    return DiskSpace(device="8:1", used_bytes=total_gib * GIB - free, available_bytes=free)


@pytest.mark.parametrize(
    ("total_gib", "free_gib", "expected"),
    [
        (2000, 580, "cleaning"),
        (2000, 51, "cleaning"),
        (2000, 49, "blocked"),
        (100, 29, "cleaning"),
        (100, 5.1, "cleaning"),
        (100, 4.9, "blocked"),
        (100, 60, "normal"),
    ],
)
def test_the_shipped_guard_blocks_only_with_little_left_too(
    total_gib: int, free_gib: float, expected: str
) -> None:
    assert level(disk_of(total_gib, free_gib), DiskPolicy(), DiskLevel.NORMAL) == expected


def test_a_block_by_free_space_ends_a_little_above_it() -> None:
    levels = [
        level(disk_of(100, free), DiskPolicy(), DiskLevel.BLOCKED) for free in (5.5, 5.9, 6.1)
    ]

    assert levels == ["blocked", "blocked", "cleaning"]


@pytest.mark.parametrize(("free_gib", "expected"), [(580, False), (90, True), (10, True)])
def test_a_guard_is_near_before_it_blocks(free_gib: float, expected: bool) -> None:
    assert is_near(disk_of(2000, free_gib), DiskPolicy()) is expected
    assert not is_near(disk_of(2000, free_gib), DiskPolicy(block_pct=100))


def test_a_file_system_that_cannot_be_read_keeps_its_level() -> None:
    assert level(None, POLICY, DiskLevel.BLOCKED) is DiskLevel.BLOCKED
    assert level(None, POLICY, DiskLevel.UNKNOWN) is DiskLevel.UNKNOWN


def test_100_percent_is_never() -> None:
    never = DiskPolicy(warn_pct=100, clean_pct=100, block_pct=100)

    assert level(space(100.0), never, DiskLevel.NORMAL) is DiskLevel.NORMAL


def test_reserved_blocks_count_as_df_counts_them() -> None:
    reserved = DiskSpace(device="8:1", used_bytes=60 * GIB, available_bytes=20 * GIB)

    assert reserved.used_pct == 75.0
    assert DiskSpace(device="0:5", used_bytes=0, available_bytes=0).used_pct is None


def test_the_coordinator_acts_earlier() -> None:
    assert PROFILES["coordinator"]["disk"] == {
        "warn_pct": 50.0, "clean_pct": 55.0, "block_pct": 60.0
    }  # fmt: skip


def test_thresholds_in_the_wrong_order_and_relative_paths_are_conflicts() -> None:
    wrong = DiskPolicy(warn_pct=90, clean_pct=80, block_pct=70, paths=("data",))

    assert set(wrong.conflicts()) == {"clean_pct", "block_pct", "paths"}


def full(used_pct: float = 71.4, free: int = 28 * GIB) -> dict[str, FullDisk]:
    disk = FullDisk(
        path="/data",
        device="8:1",
        used_pct=used_pct,
        limit_pct=70.0,
        limit_bytes=50 * GIB,
        available_bytes=free,
    )
    return {"8:1": disk}


FULL = full()


def test_a_job_waits_for_each_full_file_system_of_its_folders_once() -> None:
    folders = (
        (FolderUse.WORKING, "8:2"),
        (FolderUse.CHECKPOINT, "8:1"),
        (FolderUse.LOG, "8:1"),
    )
    (blocker,) = full_blockers(folders, FULL)

    assert blocker.code is BlockerCode.DISK_FULL
    assert text(blocker) == (
        "The file system of /data is 71 % full; no job with its checkpoint folder there"
        " starts above 70 % with less than 50 GiB free (28 GiB are left)."
    )
    assert from_row(to_row(blocker)) == blocker


def test_changed_figures_are_the_same_reason() -> None:
    (one,), (other,) = (
        full_blockers([(FolderUse.WORKING, "8:1")], disks) for disks in (FULL, full(80.0, GIB))
    )

    assert one.key == other.key


def test_the_folder_of_logs_alone_blocks_only_in_a_real_shortage() -> None:
    log = [(FolderUse.LOG, "8:1")]

    assert full_blockers(log, full(free=2 * GIB)) == ()
    assert full_blockers(log, full(free=2 * GIB - 1))[0].requested == "log folder"


def test_a_blocker_of_an_earlier_version_still_has_its_sentence() -> None:
    (blocker,) = full_blockers([(FolderUse.WORKING, "8:1")], FULL)
    row = to_row(blocker)
    del row["details"]["limit_bytes"]

    assert "starts above 70 % (28 GiB are left)." in text(from_row(row))


def test_an_unknown_file_system_blocks_nothing() -> None:
    assert full_blockers([(FolderUse.WORKING, None), (FolderUse.LOG, "8:2")], FULL) == ()
