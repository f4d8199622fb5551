from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from scheduler.disk.policy import (
    CleaningPolicy,
    CleanRoot,
    CleanRule,
    DiskSpace,
    FileEntry,
    candidates,
    needed,
)
from tests.builders import GIB, NOW

LOGS = CleanRoot("/data/jobs", CleanRule.LOG, of_jobs=True)
CHECKPOINTS = CleanRoot("/data/jobs", CleanRule.CHECKPOINT, "checkpoint", of_jobs=True)
DATABASES = CleanRoot("/srv/app/db", CleanRule.DATABASE)
DATA = CleanRoot("/srv/app/data", CleanRule.DATA)
_inodes = iter(range(1, 10**6))


def file(root: CleanRoot, path: str, days: float = 30.0, **changes: Any) -> FileEntry:
    at = round((NOW - timedelta(days=days)).timestamp() * 1e9)
    return FileEntry(
        root=root.path, parts=tuple(path.split("/")), mtime_ns=at, ctime_ns=at,
        **({"device": 1, "inode": next(_inodes), "size": GIB, "disk_bytes": GIB} | changes),
    )  # fmt: skip


def chosen(found: dict[CleanRoot, list[FileEntry]], **more: Any) -> list[str]:
    return ["/".join(c.file.parts) for c in candidates(found, CleaningPolicy(), NOW, **more)]


def test_rules_come_in_their_order_and_the_oldest_file_first() -> None:
    found = {
        DATA: [file(DATA, "a.bin", 90)],
        CHECKPOINTS: [file(CHECKPOINTS, f"1/checkpoint/{d}.pt", d) for d in (10, 30, 8, 20, 9)],
        DATABASES: [file(DATABASES, "old.db", 60, is_empty_database=True)],
        LOGS: [file(LOGS, "1/1/output.log", 8), file(LOGS, "2/1/output.log", 9)],
    }

    assert chosen(found) == [
        "2/1/output.log", "1/1/output.log", "old.db", "1/checkpoint/30.pt", "1/checkpoint/20.pt",
        "a.bin",
    ]  # fmt: skip


def test_young_files_other_names_and_full_databases_stay() -> None:
    found = {
        LOGS: [file(LOGS, "1/1/output.log", 6.9), file(LOGS, "1/1/result.json", 99)],
        DATABASES: [file(DATABASES, "used.db", 99), file(DATABASES, "new.db", 0.5,
                                                         is_empty_database=True)],
    }  # fmt: skip

    assert chosen(found) == []


def test_files_of_jobs_that_have_not_ended_stay() -> None:
    found = {LOGS: [file(LOGS, "1/1/output.log"), file(LOGS, "2/1/output.log")]}

    assert chosen(found, unfinished={"1"}) == ["2/1/output.log"]


def test_the_newest_checkpoints_of_each_folder_stay() -> None:
    found = {
        CHECKPOINTS: [
            *(file(CHECKPOINTS, f"1/checkpoint/{d}.pt", d) for d in (10, 20, 30, 40)),
            file(CHECKPOINTS, "2/checkpoint/only.pt", 99),
            file(CHECKPOINTS, "1/1/spec.json", 99),
        ]
    }

    assert chosen(found) == ["1/checkpoint/40.pt"]


def test_checkpoints_and_data_need_a_copy_and_logs_only_if_wished() -> None:
    found = {
        LOGS: [file(LOGS, "1/1/output.log")],
        DATA: [file(DATA, "a.bin")],
    }
    plain = candidates(found, CleaningPolicy(), NOW)
    careful = candidates(found, CleaningPolicy(copy_logs=True), NOW)

    assert [c.needs_copy for c in plain] == [False, True]
    assert [c.needs_copy for c in careful] == [True, True]


def test_a_file_in_two_folders_is_deleted_once() -> None:
    more = CleanRoot("/data/jobs/1", CleanRule.LOG)
    found = {
        LOGS: [file(LOGS, "1/1/output.log", inode=7)],
        more: [file(more, "1/output.log", inode=7)],
    }

    assert chosen(found) == ["1/1/output.log"]


def test_a_clean_up_needs_only_as_many_files_as_bring_it_below() -> None:
    ordered = candidates(
        {LOGS: [file(LOGS, f"{n}/1/output.log") for n in range(5)]}, CleaningPolicy(), NOW
    )
    space = DiskSpace(device="8:1", used_bytes=12 * GIB, available_bytes=8 * GIB)

    assert [len(needed(ordered, space, goal)) for goal in (70, 60, 55, 50, 0)] == [0, 0, 1, 2, 5]


@pytest.mark.parametrize(
    "path",
    [
        "data",
        "/",
        "/home",
        "/etc/app",
        "/usr/share/x",
        "/srv/../etc",
        "/srv//x",
        "/var",
        "/root/.ssh",
    ],
)
def test_folders_of_the_system_are_refused(path: str) -> None:
    policy = CleaningPolicy(log_folders=(path,))

    assert set(policy.conflicts()) == {"log_folders"}
    assert policy.roots() == ()


def test_listed_folders_are_roots() -> None:
    policy = CleaningPolicy(log_folders=("/srv/app/log/",), data_folders=("/home/x/data",))

    assert policy.conflicts() == {}
    assert [(root.path, root.rule) for root in policy.roots()] == [
        ("/srv/app/log", CleanRule.LOG),
        ("/home/x/data", CleanRule.DATA),
    ]
