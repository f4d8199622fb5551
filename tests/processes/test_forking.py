"""A job's first process is in its cgroups from the beginning, however this kernel does it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scheduler.runner import launch
from scheduler.runner.confine import cgroups
from scheduler.runner.confine.cgroups import Cgroup

pytestmark = pytest.mark.processes
NO_SUCH_CALL = 100_000
PROGRAM = """
import os, signal, sys
from pathlib import Path
from scheduler.runner import launch
launch.CLONE3 = int(sys.argv[1])
ready, told = os.pipe()
pid = launch.fork_into([Path(folder) for folder in sys.argv[2:]])
if pid == 0:
    os.write(told, b".")
    signal.pause()
os.read(ready, 1)
print(pid, flush=True)
sys.stdin.read()
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
"""
THREADED = """
import os, sys, threading
from pathlib import Path
from scheduler.runner import launch
def work():
    while True:
        pass
sys.setswitchinterval(1e-4)
threading.Thread(target=work, daemon=True).start()
for _ in range(50):
    pid = launch.fork_into([Path(sys.argv[1])])
    if pid == 0:
        for _ in range(1000):
            pass
        os._exit(0)
    os.waitpid(pid, 0)
os._exit(0)
"""


@pytest.fixture(scope="module")
def parents() -> tuple[str, ...]:
    parent = cgroups.find_parent()
    if not parent.folders:
        pytest.skip(f"no cgroup can be made here: {parent.problem}")
    return parent.folders


@pytest.fixture
def cgroup(parents: tuple[str, ...]) -> Iterator[Cgroup]:
    made = Cgroup.under(parents, f"fork-{os.getpid()}")
    made.make()
    yield made
    made.remove()


@contextmanager
def _forked(folders: tuple[Path, ...], call: int = launch.CLONE3) -> Iterator[int]:
    """The pid of a child, forked into these by a process that has one thread, as a runner has."""
    argv = [sys.executable, "-c", PROGRAM, str(call), *map(str, folders)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate()


@pytest.mark.parametrize("call", [launch.CLONE3, NO_SUCH_CALL], ids=["born", "steps in"])
def test_a_child_is_in_all_of_its_cgroups(cgroup: Cgroup, call: int) -> None:
    with _forked(cgroup.folders, call) as pid:
        assert cgroup.holding(pid) == cgroup
    assert os.getpid() not in cgroup.pids()


def test_a_folder_that_is_no_cgroup_is_left_out(cgroup: Cgroup, tmp_path: Path) -> None:
    folders = (tmp_path, *cgroup.folders)
    with _forked(folders) as pid:
        pids = Cgroup(folders).holding(pid)

    assert pids is not None
    assert tmp_path not in pids.folders
    assert not list(tmp_path.iterdir())


def test_it_forks_safely_beside_other_threads(cgroup: Cgroup) -> None:
    argv = [sys.executable, "-W", "ignore", "-c", THREADED, str(cgroup.folders[-1])]

    assert subprocess.run(argv, timeout=30, check=False).returncode == 0
