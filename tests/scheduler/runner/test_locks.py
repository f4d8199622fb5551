"""Lock files: who may hold which beside whom, and what is refused as unsafe."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scheduler.runner.confine import locks
from scheduler.runner.confine.locks import (
    HeldLocks,
    LockRefused,
    UnsafeLockFile,
    lock_gpus,
    lock_host,
)

ONE, OTHER = locks.instance_number("/srv/one"), locks.instance_number("/srv/other")


@contextmanager
def holding(*taken: HeldLocks | LockRefused) -> Iterator[None]:
    assert all(isinstance(one, HeldLocks) for one in taken)
    yield
    for one in taken:
        assert isinstance(one, HeldLocks)
        one.release()


def may(taken: HeldLocks | LockRefused) -> bool:
    if isinstance(taken, HeldLocks):
        taken.release()
        return True
    return False


def test_who_has_a_gpu_alone_keeps_all_others_off_until_the_release(tmp_path: Path) -> None:
    with holding(lock_gpus(tmp_path, [0], alone=True)):
        assert not may(lock_gpus(tmp_path, [0], alone=True))
        assert not may(lock_gpus(tmp_path, [0], alone=False))
        assert may(lock_gpus(tmp_path, [1], alone=True))
    assert may(lock_gpus(tmp_path, [0], alone=True))


def test_several_may_share_a_gpu_but_then_nobody_gets_it_alone(tmp_path: Path) -> None:
    with holding(lock_gpus(tmp_path, [0], alone=False), lock_gpus(tmp_path, [0], alone=False)):
        assert not may(lock_gpus(tmp_path, [0], alone=True))


def test_all_gpus_are_taken_or_none(tmp_path: Path) -> None:
    with holding(lock_gpus(tmp_path, [1], alone=True)):
        assert not may(lock_gpus(tmp_path, [0, 1, 2], alone=True))
        assert may(lock_gpus(tmp_path, [0], alone=True))
        assert may(lock_gpus(tmp_path, [2], alone=True))


def test_who_has_the_host_has_every_gpu(tmp_path: Path) -> None:
    with holding(lock_host(tmp_path)):
        assert not may(lock_gpus(tmp_path, [3], alone=False))
    with holding(lock_gpus(tmp_path, [3], alone=False)):
        assert not may(lock_host(tmp_path))


def test_two_instances_never_share_a_gpu_but_jobs_of_one_do(tmp_path: Path) -> None:
    with holding(lock_gpus(tmp_path, [0], alone=False, instance=ONE)):
        assert may(lock_gpus(tmp_path, [0], alone=False, instance=ONE))
        assert not may(lock_gpus(tmp_path, [0], alone=False, instance=OTHER))
        assert may(lock_gpus(tmp_path, [1], alone=False, instance=OTHER))
    assert may(lock_gpus(tmp_path, [0], alone=False, instance=OTHER))


@pytest.mark.parametrize("number", [1, 2, 2**30 - 1])
def test_the_first_and_the_last_instance_number_work_too(tmp_path: Path, number: int) -> None:
    with holding(lock_gpus(tmp_path, [0], alone=False, instance=number)):
        assert not may(lock_gpus(tmp_path, [0], alone=False, instance=ONE))
        assert may(lock_gpus(tmp_path, [0], alone=False, instance=number))


def test_the_holder_is_named(tmp_path: Path) -> None:
    with holding(lock_gpus(tmp_path, [0], alone=True)):
        refused = lock_gpus(tmp_path, [0], alone=True)

    assert isinstance(refused, LockRefused)
    (holder,) = refused.by
    assert (holder.pid, holder.alone) == (os.getpid(), True)
    assert f"(pid {os.getpid()})" in locks.describe_refusal(refused)
    assert refused.file == tmp_path / "gpu0.lock"


def test_looking_at_holders_takes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "gpu0.lock"
    assert locks.holders([file]) == {file: ()}
    assert not file.exists()
    with holding(lock_gpus(tmp_path, [0], alone=False)):
        assert [h.alone for h in locks.holders([file])[file]] == [False]


def test_a_lock_whose_taker_has_ended_is_its_heirs(tmp_path: Path) -> None:
    """As with `exec 9<gpu0.lock; flock 9` in a shell."""
    descriptor = locks.open_file(tmp_path / "gpu0.lock")
    child = os.fork()
    if child == 0:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os._exit(0)
    os.waitpid(child, 0)

    (holder,) = locks.holders([tmp_path / "gpu0.lock"])[tmp_path / "gpu0.lock"]
    os.close(descriptor)
    assert holder.pid == os.getpid()


def test_a_file_of_another_device_number_is_known_by_who_has_it_open(tmp_path: Path) -> None:
    with holding(lock_gpus(tmp_path, [0], alone=True)):
        status = (tmp_path / "gpu0.lock").stat()
        assert locks._is_same((999, 9), status, os.getpid())
    assert not locks._is_same((999, 9), status, os.getpid())


def test_others_can_lock_the_file_but_not_write_it(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        may(lock_gpus(tmp_path, [0], alone=True))
    finally:
        os.umask(old)

    assert stat.S_IMODE((tmp_path / "gpu0.lock").stat().st_mode) == 0o644


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    (tmp_path / "gpu0.lock").symlink_to(tmp_path / "precious")

    with pytest.raises(UnsafeLockFile, match="link"):
        lock_gpus(tmp_path, [0], alone=True)


def test_a_dangling_link_makes_no_file_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "gpu0.lock").symlink_to(tmp_path / "made")

    with pytest.raises(UnsafeLockFile):
        lock_gpus(tmp_path, [0], alone=True)
    assert not (tmp_path / "made").exists()


def test_a_pipe_or_a_second_name_of_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gpu0.lock")
    (tmp_path / "precious").write_text("x")
    os.link(tmp_path / "precious", tmp_path / "gpu1.lock")

    for index in (0, 1):
        with pytest.raises(UnsafeLockFile, match="plain file"):
            lock_gpus(tmp_path, [index], alone=True)


def test_a_folder_where_others_may_swap_files_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(UnsafeLockFile, match="sticky"):
        lock_gpus(tmp_path, [0], alone=True)
    tmp_path.chmod(0o1777)
    assert may(lock_gpus(tmp_path, [0], alone=True))


def test_nothing_stays_open_when_one_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gpu1.lock").mkdir()
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(OSError):
        lock_gpus(tmp_path, [0, 1], alone=True)
    assert len(os.listdir("/proc/self/fd")) == before
    assert may(lock_gpus(tmp_path, [0], alone=True))


def test_a_file_that_was_removed_while_it_was_waited_for_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file at the path decides, not the one that was there when it was opened."""
    file, real = tmp_path / "gpu0.lock", fcntl.flock
    tries: list[int] = []

    def removes_it_once(descriptor: int, how: int) -> None:
        real(descriptor, how)
        if file.exists() and not tries:
            tries.append(descriptor)
            file.unlink()

    monkeypatch.setattr(fcntl, "flock", removes_it_once)
    with holding(locks.lock_gpus(tmp_path, [0], alone=True)):
        assert tries
        assert file.exists()
        assert not may(lock_gpus(tmp_path, [0], alone=True))
