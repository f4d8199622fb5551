"""Files that gpucoord writes into folders in which a job's account may plant links."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler.runner import files
from scheduler.runner.files import READABLE

Write = Callable[[Path], object]


def write_spec(folder: Path) -> None:
    files.write_json(folder / files.SPEC, {"nonce": "n"})


def write_input(folder: Path) -> None:
    files.write_private(folder / files.STDIN, b"data")


def claim(folder: Path) -> None:
    assert files.claim(folder, {"pid": 1})


WRITES = pytest.mark.parametrize("write", [write_spec, write_input, claim])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "attempt"
    folder.mkdir()
    return folder


@WRITES
def test_a_link_at_a_name_that_can_be_foreseen_leads_nowhere(
    write: Write, folder: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    for name in (files.SPEC, files.STDIN, files.CLAIMED):
        (folder / f"{name}.{os.getpid()}").symlink_to(victim)
    if write is not claim:
        for name in (files.SPEC, files.STDIN):
            (folder / name).symlink_to(victim)
    write(folder)

    assert victim.read_text() == "kept"


@WRITES
def test_a_draft_that_exists_is_neither_followed_nor_overwritten(
    write: Write, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should the name be guessed after all."""
    monkeypatch.setattr(os, "urandom", lambda size: b"\0" * size)
    victim = tmp_path / "victim"
    for name in (files.SPEC, files.STDIN, files.CLAIMED):
        (folder / f"{name}.{'00' * 8}").symlink_to(victim)

    with pytest.raises(FileExistsError):
        write(folder)
    assert not victim.exists()


@WRITES
def test_only_its_account_reads_it_and_no_draft_stays(write: Write, folder: Path) -> None:
    before = os.umask(0)
    try:
        write(folder)
    finally:
        os.umask(before)
    (made,) = folder.iterdir()

    assert made.stat().st_mode & 0o777 == 0o600


@WRITES
def test_a_write_that_fails_leaves_no_draft(
    write: Write, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", fail)
    monkeypatch.setattr(os, "link", fail)

    with pytest.raises(OSError, match="no space left"):
        write(folder)
    assert not list(folder.iterdir())


def test_the_job_may_read_a_file_that_is_written_for_it(folder: Path) -> None:
    path = folder / "1.yield"
    files.write_json(path, {"reason": "load"}, READABLE)

    assert path.stat().st_mode & 0o777 == READABLE == 0o644
