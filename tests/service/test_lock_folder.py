"""The folder of lock files is there before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucoord_site.service.startup_checks import (
    UnableToStart,
    lock_folder_problem,
    make_lock_folder,
)


def test_it_is_created_for_all_accounts_but_no_account_can_replace_files_of_another(
    tmp_path: Path,
) -> None:
    make_lock_folder(tmp_path / "locks")

    assert (tmp_path / "locks").stat().st_mode & 0o7777 == 0o1777


def test_one_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)

    make_lock_folder(tmp_path)

    assert tmp_path.stat().st_mode & 0o7777 == 0o750


def test_a_folder_that_cannot_be_created_is_reported_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(UnableToStart, match=r"can't be made.*mkdir -m 1777"):
        make_lock_folder(tmp_path / "no" / "where")


def test_an_unsafe_folder_is_reported_before_any_job_starts(tmp_path: Path) -> None:
    assert lock_folder_problem(tmp_path) is None
    tmp_path.chmod(0o777)

    assert "not sticky" in (lock_folder_problem(tmp_path) or "")
