"""A job's first process is in its cgroups from the beginning, however this kernel does it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.runner import cgroup_places, forking
from scheduler.runner.cgroups import Cgroup
from scheduler.runner.forking import fork_into

pytestmark = pytest.mark.processes
NO_SUCH_CALL = 100_000


@pytest.fixture(scope="module")
def parents() -> tuple[str, ...]:
    found = cgroup_places.find()
    if not found.folders:
        pytest.skip(f"no cgroup can be made here: {found.problem}")
    return found.folders


@pytest.fixture
def cgroup(parents: tuple[str, ...]) -> Iterator[Cgroup]:
    made = Cgroup.under(parents, f"fork-{os.getpid()}")
    made.make()
    yield made
    made.remove()


def _child(folders: tuple[Path, ...]) -> int:
    """It stays, and says when it is there."""
    ready, told = os.pipe()
    pid = fork_into(folders)
    if pid == 0:
        os.write(told, b".")
        signal.pause()
        os._exit(0)
    os.read(ready, 1)
    os.close(ready)
    os.close(told)
    return pid


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.mark.parametrize("call", [forking.CLONE3, NO_SUCH_CALL], ids=["born", "steps in"])
def test_a_child_is_in_all_of_its_cgroups(
    cgroup: Cgroup, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forking, "CLONE3", call)
    pid = _child(cgroup.folders)
    found = cgroup.holding(pid)
    _end(pid)

    assert found == cgroup
    assert os.getpid() not in cgroup.pids()


def test_a_folder_that_is_no_cgroup_is_left_out(cgroup: Cgroup, tmp_path: Path) -> None:
    pid = _child((tmp_path, *cgroup.folders))
    found = Cgroup((tmp_path, *cgroup.folders)).holding(pid)
    _end(pid)

    assert found is not None
    assert tmp_path not in found.folders
    assert not list(tmp_path.iterdir())
