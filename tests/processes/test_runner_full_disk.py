from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from scheduler.runner import files
from scheduler.runner.run import ReservedResult
from scheduler.runner.spec import Result
from tests.pace import LONGEST_S
from tests.processes.attempts import NONCE, RunningAttempt

pytestmark = pytest.mark.processes
Run = Callable[..., RunningAttempt]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB in the place of the jobs' folder."""
    folder = tmp_path / "data" / "jobs"
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def adopting() -> Iterator[Callable[[], None]]:
    """Runners become children of the test; the call waits until none of them is left."""
    subreaper = 36
    libc = ctypes.CDLL(None)
    before = set(psutil.Process().children())
    assert libc.prctl(subreaper, 1, 0, 0, 0) == 0
    yield lambda: _wait_for(set(psutil.Process().children()) - before)
    libc.prctl(subreaper, 0, 0, 0, 0)


def _wait_for(children: set[psutil.Process]) -> None:
    _, left = psutil.wait_procs(children, timeout=LONGEST_S)
    assert not left


def _fill(folder: Path) -> Path:
    filler = folder / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


def test_a_disk_that_the_job_fills_loses_no_exit_code(run: Run, small_disk: Path) -> None:
    attempt = run("/bin/sh", "-c", "head -c 1000000 /dev/zero; exit 5")

    result = attempt.result()
    assert result.exit_code == 5
    assert 0 < (result.log_bytes or 0) < 128 * 1024


def test_a_job_is_not_started_where_its_result_has_no_room(
    run: Run, small_disk: Path, adopting: Callable[[], None]
) -> None:
    attempt = run("/bin/sh", "-c", "exit 5")
    attempt.result()
    attempt.spawner.close()
    adopting()
    for name in (files.RESULT, files.CLAIMED, files.STARTED, files.LOG):
        (attempt.folder / name).unlink()
    filler = _fill(small_disk)
    attempt.spawn()
    attempt.spawner.close()
    adopting()

    assert not (attempt.folder / files.LOG).exists()
    # With room again, it is.
    filler.unlink()
    attempt.spawn()
    assert attempt.result().exit_code == 5


def test_a_job_waits_whose_result_has_no_room_after_its_claim(
    run: Run, small_disk: Path, adopting: Callable[[], None]
) -> None:
    attempt = run("/bin/sh", "-c", "exit 5")
    attempt.result()
    attempt.spawner.close()
    adopting()
    for name in (files.RESULT, files.CLAIMED, files.STARTED, files.LOG):
        (attempt.folder / name).unlink()
    filler = _fill(small_disk)
    # Room for the claim, but not for the result besides.
    os.truncate(filler, filler.stat().st_size - 2 * 4096)
    attempt.spawn()
    attempt.spawner.close()
    adopting()

    left = {path.name for path in attempt.folder.iterdir()}
    assert left == {files.SPEC}
    filler.unlink()
    attempt.spawn()
    assert attempt.result().exit_code == 5


def test_a_result_is_written_as_soon_as_that_is_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = iter([OSError(5, "Input/output error"), OSError(28, "No space left")])
    report = ReservedResult(tmp_path)
    report.reserve()

    def fail_twice(*_: object) -> None:
        if fault := next(faults, None):
            raise fault

    monkeypatch.setattr("os.fsync", fail_twice)
    monkeypatch.setattr("scheduler.runner.run.RETRY_S", 0)
    assert report.publish(Result(nonce=NONCE, ended_at=1.0, exit_code=3))
    assert (files.read_json(tmp_path / files.RESULT) or {})["exit_code"] == 3


def test_a_runner_does_not_wait_for_a_folder_that_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    report = ReservedResult(folder)
    report.reserve()
    next(folder.iterdir()).unlink()
    folder.rmdir()

    assert not report.publish(Result(nonce=NONCE, ended_at=1.0))
