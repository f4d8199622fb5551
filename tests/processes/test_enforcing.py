from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.runner import actions as process_actions
from scheduler.runner import process_tree
from scheduler.runner.actions import GONE, OURS, ProcessControl, Target
from scheduler.runner.confine import caps
from tests.processes.service import wait_until

pytestmark = pytest.mark.processes
THREADS = (
    "import threading, time; t = threading.Thread(target=time.sleep, args=(60,)); t.start(); "
    "print('up', flush=True); t.join()"
)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this test's own, with two threads."""
    with subprocess.Popen([sys.executable, "-c", THREADS], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield process
        process.kill()


@pytest.fixture
def target(child: subprocess.Popen[bytes]) -> Target:
    return Target("incident-1", child.pid, process_tree.start_ticks_of(child.pid) or 0)


@pytest.fixture
def actions(tmp_path: Path, target: Target) -> Iterator[ProcessControl]:
    made = ProcessControl(tmp_path / "pacing")
    yield made
    made.thaw(target)
    wait_until(lambda: not paced(target), 3, "no pacer")


def is_stopped(target: Target) -> bool:
    return Path(f"/proc/{target.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def paced(target: Target) -> list[int]:
    """The pids of the keeper and, after it, of the pacer."""
    pids = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                command = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(target.pid).encode() in command and b"-S" in command:
                pids.append(int(name))
    return sorted(pids)


def stops(target: Target) -> bool:
    return wait_until(lambda: is_stopped(target), 5, "stopped")


def goes(target: Target) -> bool:
    return wait_until(lambda: not is_stopped(target), 5, "going on")


def test_it_goes_and_stops_in_turns_until_it_is_let_go(
    actions: ProcessControl, target: Target
) -> None:
    assert actions.freeze(target, 0.1, 0.2) is None
    for _ in range(2):
        assert stops(target)
        assert goes(target)

    actions.thaw(target)

    wait_until(lambda: not paced(target), 3, "no pacer")
    assert not is_stopped(target)


def test_asking_again_starts_no_second_pacer(actions: ProcessControl, target: Target) -> None:
    for _ in range(3):
        actions.freeze(target, 0.1, 0.2, again=True)
    stops(target)

    assert len(paced(target)) == 2


@pytest.mark.parametrize("which", [0, 1], ids=["keeper", "pacer"])
def test_it_goes_on_when_either_of_the_two_is_killed(
    actions: ProcessControl, target: Target, which: int
) -> None:
    actions.freeze(target, 0.1, 60)
    stops(target)

    os.kill(paced(target)[which], signal.SIGKILL)

    assert goes(target)
    wait_until(lambda: not paced(target), 3, "no pacer")
    assert not is_stopped(target)


def test_it_goes_on_when_gpucoord_writes_no_permit_any_more(
    actions: ProcessControl, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_actions, "PERMIT_S", 0.8)
    actions.freeze(target, 0.1, 60)
    stops(target)

    assert goes(target)
    wait_until(lambda: not paced(target), 3, "no pacer")


def test_what_both_left_stopped_is_let_go_by_the_next(
    actions: ProcessControl, target: Target
) -> None:
    actions.freeze(target, 0.1, 60)
    stops(target)
    keeper, pacer = paced(target)
    os.kill(keeper, signal.SIGSTOP)
    os.kill(pacer, signal.SIGKILL)
    os.kill(keeper, signal.SIGKILL)
    wait_until(lambda: not paced(target), 3, "no pacer")
    assert is_stopped(target)

    actions.freeze(target, 60, 1, again=True)

    assert goes(target)


def test_what_its_owner_stopped_stays_stopped(actions: ProcessControl, target: Target) -> None:
    os.kill(target.pid, signal.SIGSTOP)
    stops(target)
    actions.freeze(target, 0.1, 0.1)
    wait_until(lambda: len(paced(target)) == 2, 3, "a pacer")
    time.sleep(0.5)

    assert is_stopped(target)


def test_another_process_of_the_same_number_is_never_touched(
    actions: ProcessControl, target: Target
) -> None:
    other = replace(target, start_ticks=target.start_ticks - 1)

    assert actions.look(other) is None
    assert actions.lower(other, 19) in (GONE, process_actions.NO_WAY_BACK)
    assert actions.freeze(other, 0.1, 0.1) == GONE
    assert actions.end(other) == GONE
    assert actions.cap(other, {}, 1, None) == GONE
    caps.serve([str(actions._permit(other)), str(other.pid), str(other.start_ticks), "0", "9"])
    assert not is_stopped(target)


def test_its_own_parents_are_never_touched(actions: ProcessControl) -> None:
    pid = os.getpid()
    me = Target("me", pid, process_tree.start_ticks_of(pid) or 0)
    parent = os.getppid()
    above = Target("above", parent, process_tree.start_ticks_of(parent) or 0)

    assert [actions.end(me), actions.freeze(above, 1, 1)] == [OURS, OURS]


def nices(target: Target) -> list[int]:
    threads = os.listdir(f"/proc/{target.pid}/task")
    return [os.getpriority(os.PRIO_PROCESS, int(tid)) for tid in threads]


@pytest.mark.skipif(not caps.may_restore(), reason="needs the privilege to raise priorities")
def test_the_priority_of_all_its_threads_is_lowered_and_restored(
    actions: ProcessControl, target: Target
) -> None:
    before = actions.look(target)
    assert before
    usual = nices(target)

    assert actions.lower(target, 15) is None
    assert nices(target) == [15, 15]
    assert caps.read_priorities(target.pid)["io"] in (caps.IDLE, None)  # type: ignore[index]
    actions.lower(target, 10)
    assert nices(target) == [15, 15]

    actions.restore(target, before)
    assert nices(target) == usual
    assert caps.read_priorities(target.pid) == before["priority"]


def test_without_a_way_back_no_priority_is_lowered(
    actions: ProcessControl, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caps, "may_restore", lambda: False)

    assert actions.lower(target, 15) == process_actions.NO_WAY_BACK


def test_it_is_ended_even_while_it_is_stopped(
    actions: ProcessControl, target: Target, child: subprocess.Popen[bytes]
) -> None:
    os.kill(target.pid, signal.SIGSTOP)

    assert actions.end(target) is None
    assert child.wait(5) == -signal.SIGTERM
    assert actions.end(target, kill=True) == GONE


Groups = Callable[..., Path]


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    """A folder that looks like cgroup v2 with this process's group in it: groups(pid, …)."""

    def make(where: str, *members: int) -> Path:
        root = tmp_path / "cgroup"
        home = root / where.lstrip("/")
        home.mkdir(parents=True, exist_ok=True)
        (root / "cgroup.controllers").write_text("cpu memory")
        (home / "cgroup.procs").write_text("\n".join(map(str, members)))
        (home / "cpu.max").write_text("max 100000\n")
        (home / "memory.high").write_text("max\n")
        return root

    return make


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.runner.confine.caps._where", lambda pid: "/user/alice")


@pytest.mark.usefixtures("at_home")
def test_a_group_of_its_own_is_capped_in_place_and_restored(
    groups: Groups, target: Target, tmp_path: Path
) -> None:
    root = groups("/user/alice", target.pid)
    mine = ProcessControl(tmp_path / "p", root)
    before = mine.look(target) or {}

    assert mine.cap(replace(target, in_container=True), before, 1.5, 1024) is None
    home = root / "user/alice"
    assert ((home / "cpu.max").read_text(), (home / "memory.high").read_text()) == (
        "150000 100000",
        "1024",
    )
    mine.uncap(target, before)
    assert ((home / "cpu.max").read_text(), (home / "memory.high").read_text()) == (
        "max 100000",
        "max",
    )


@pytest.mark.usefixtures("at_home")
def test_one_among_others_is_moved_and_back_but_never_out_of_a_container(
    groups: Groups, target: Target, tmp_path: Path
) -> None:
    root = groups("/user/alice", target.pid, 1)
    mine = ProcessControl(tmp_path / "p", root)
    before = mine.look(target) or {}

    assert mine.cap(replace(target, in_container=True), before, 1, None) is not None
    assert mine.cap(target, before, 1, None) is None
    own = root / "gpucoord.caps/incident-1"
    assert (own / "cgroup.procs").read_text() == str(target.pid)
    assert (root / "user/alice/cpu.max").read_text() == "max 100000\n"

    mine.uncap(target, before)
    assert (root / "user/alice/cgroup.procs").read_text() == str(target.pid)


def test_without_cgroups_it_says_so(target: Target, tmp_path: Path) -> None:
    mine = ProcessControl(tmp_path / "p", tmp_path)

    assert "no cgroup v2" in (mine.cap(target, mine.look(target) or {}, 1, None) or "")
