"""Lock files that can't be locked: told with what to do, and the GPU reopens when mended."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from msgspec.structs import replace

from gpucoord_site.cli import check
from gpucoord_site.cli.check_machine import Level
from monitor.gpus.rows import closures as availability
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Event
from scheduler.execution.steps import gpu_closures
from scheduler.execution.steps.gpu_closures import LockFiles
from scheduler.runner.confine import locks
from tests.builders import NOW, gpu_uuid, host, snapshot

pytestmark = pytest.mark.django_db
Make = Callable[[Path], object]


def link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def hard_link(path: Path) -> None:
    other = path.with_name("other")
    other.touch()
    os.link(other, path)


SPOILED = [
    (os.mkfifo, "is a FIFO", "rm"),
    (os.mkdir, "is a folder", "rmdir"),
    (link, "is a link", "rm"),
    (hard_link, "has 2 hard links", "rm"),
]


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    made = tmp_path / "locks"
    made.mkdir()
    settings.LOCK_FOLDER = made
    return made


def _judge(folder: Path) -> object:
    shot = snapshot(2, host=host(name="gpubox"))
    snapshots.record(shot)
    return LockFiles("gpubox", folder).judge(shot, NOW)


def _events() -> list[str]:
    return list(Event.objects.filter(kind__startswith="GPU_LOCK").values_list("kind", flat=True))


@pytest.mark.parametrize(("spoil", "words", "remedy"), SPOILED)
def test_a_spoiled_lock_file_closes_its_gpu_with_what_to_do_until_it_is_mended(
    folder: Path, spoil: Make, words: str, remedy: str
) -> None:
    path = locks.gpu_lock_file(folder, 1)
    spoil(path)
    _judge(folder)
    (fact,) = availability.on("gpubox")

    assert fact.gpu_uuid == gpu_uuid(1)
    assert fact.text == f"The lock file {path} {words}. To mend it: {remedy} {path}."
    assert set(gpu_closures.gpu_closures("gpubox", snapshot(2, host=host(name="gpubox")), NOW)) == {
        gpu_uuid(1)
    }
    path.rmdir() if remedy == "rmdir" else path.unlink()
    _judge(folder)

    assert availability.on("gpubox") == []
    assert _events() == ["GPU_LOCK_UNUSABLE", "GPU_LOCK_USABLE"]


def test_a_spoiled_lock_file_is_told_once(folder: Path) -> None:
    os.mkfifo(locks.gpu_lock_file(folder, 0))
    for _ in range(3):
        _judge(folder)

    assert _events() == ["GPU_LOCK_UNUSABLE"]


def test_a_spoiled_lock_of_the_host_closes_all_gpus(folder: Path) -> None:
    os.mkfifo(folder / locks.HOST_FILE)
    _judge(folder)

    assert {fact.gpu_uuid for fact in availability.on("gpubox")} == {gpu_uuid(0), gpu_uuid(1)}


def test_good_and_missing_lock_files_close_nothing(folder: Path) -> None:
    locks.gpu_lock_file(folder, 0).touch()

    assert _judge(folder) == {}
    assert _events() == []


def test_a_refusal_is_forgotten_when_the_file_is_mended(folder: Path) -> None:
    """The wait after many refusals can be minutes."""
    shot = snapshot(2, host=host(name="gpubox"))
    path = locks.gpu_lock_file(folder, 0)
    path.mkdir()
    with pytest.raises(OSError, match="no plain file") as caught:
        locks.lock_gpus(folder, [0], alone=True)
    gpu_closures.record_refusal("gpubox", [gpu_uuid(0)], locks.describe_error(caught.value), NOW)
    at = NOW + timedelta(seconds=1)
    assert gpu_uuid(0) in gpu_closures.locked_gpus("gpubox", shot, at)
    path.rmdir()

    assert gpu_closures.locked_gpus("gpubox", shot, at) == {}


def test_the_page_of_the_gpu_says_what_to_do(
    folder: Path, alice: User, as_user: Callable[[User], Client]
) -> None:
    os.mkfifo(locks.gpu_lock_file(folder, 0))
    _judge(folder)
    page = as_user(alice).get(f"/gpus/{gpu_uuid(0)}/").content.decode()

    assert f"To mend it: rm {locks.gpu_lock_file(folder, 0)}." in page


@pytest.mark.parametrize(("spoil", "words", "remedy"), SPOILED)
def test_the_check_names_a_spoiled_lock_file(
    folder: Path, settings: Any, spoil: Make, words: str, remedy: str
) -> None:
    path = locks.gpu_lock_file(folder, 0)
    spoil(path)
    config = replace(settings.CONFIG, lock_folder=folder)
    (finding,) = check.lock_files(config)

    assert (finding.level, finding.todo) == (Level.FAIL, f"{remedy} {path}")
    assert words in finding.text
