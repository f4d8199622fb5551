from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from scheduler.runner import accounts, files
from scheduler.runner.accounts import REMEMBERED_FOLDER, own_folder


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    return folder


def test_the_services_own_jobs_have_it_with_the_rest_of_the_job(data: Path) -> None:
    own = own_folder(data, 7, uid=None, chosen=None)
    own.make(None, None)

    assert own.checkpoint == files.jobs_folder(data) / "7/checkpoint"
    assert _mode(own.path) == _mode(own.checkpoint) == 0o700


def test_what_was_saved_is_there_for_the_next_attempt(data: Path) -> None:
    own = own_folder(data, 7, uid=None, chosen=None)
    own.make(None, None)
    (own.checkpoint / "step").write_text("42")
    own.make(None, None)

    assert (own.checkpoint / "step").read_text() == "42"
    assert own.yield_file(1) != own.yield_file(2)


def test_a_folder_can_be_chosen_for_all(data: Path, tmp_path: Path) -> None:
    own = own_folder(data, 7, uid=os.geteuid(), chosen=tmp_path / "large" / "disk")
    own.make(os.geteuid(), os.getegid())

    assert own.checkpoint == tmp_path / "large" / "disk" / "7" / "checkpoint"
    assert (_mode(own.path), _mode(own.checkpoint)) == (0o711, 0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders for other accounts")
@pytest.mark.parametrize("before", [None, 0o755])
def test_no_folder_on_the_way_can_be_listed_by_other_accounts(
    before: int | None, monkeypatch: pytest.MonkeyPatch, data: Path, tmp_path: Path
) -> None:
    # Below a folder of pytest that only its account may pass.
    monkeypatch.setattr(stat, "S_IXOTH", 0o100)
    accounts._shared.cache_clear()
    if before is not None:
        (tmp_path / "data-jobs").mkdir(mode=before)
    own = own_folder(data, 7, uid=65534, chosen=None)
    own.make(65534, 65534)
    accounts._shared.cache_clear()

    assert own.path == tmp_path / "data-jobs" / "7"
    assert (_mode(own.path.parent), _mode(own.path)) == (0o711, 0o711)


def test_each_made_parent_of_a_chosen_folder_can_be_passed_and_not_listed(tmp_path: Path) -> None:
    own = own_folder(tmp_path, 7, uid=os.geteuid(), chosen=tmp_path / "large" / "disk")
    own.make(os.geteuid(), os.getegid())

    modes = [_mode(tmp_path / "large"), _mode(tmp_path / "large" / "disk"), _mode(own.path)]
    assert modes == [0o711] * 3


def test_a_folder_that_somebody_else_laid_there_is_not_used(tmp_path: Path) -> None:
    aside = tmp_path / "aside"
    aside.mkdir()
    (tmp_path / "7").symlink_to(aside)
    own = own_folder(tmp_path, 7, uid=os.geteuid(), chosen=tmp_path)

    with pytest.raises(PermissionError):
        own.make(os.geteuid(), os.getegid())


@pytest.mark.skipif(os.geteuid() != 0, reason="a folder of another account is made by root")
@pytest.mark.parametrize("uid", [None, 1234])
def test_a_folder_that_another_account_has_planted_is_not_used(
    tmp_path: Path, uid: int | None
) -> None:
    (tmp_path / "7" / "checkpoint").mkdir(parents=True)
    os.chown(tmp_path / "7", 1234, 1234)
    own = own_folder(tmp_path, 7, uid=uid, chosen=tmp_path)

    with pytest.raises(PermissionError):
        own.make(uid, uid)


def test_other_accounts_get_one_that_they_can_reach(data: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    own = own_folder(data, 7, uid=65534, chosen=None)
    try:
        assert str(own.path).startswith("/var/tmp/gpucoord-jobs-")
        assert own_folder(data, 8, uid=65534, chosen=None).path.parent == own.path.parent
        assert files.read_json(data / REMEMBERED_FOLDER) == {"path": str(own.path.parent)}
    finally:
        own.path.parent.rmdir()
