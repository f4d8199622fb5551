"""Own jobs get less of CPU and disk while the machine is busy, and get back what they had."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from scheduler.runner import process_tree
from scheduler.runner.confine import caps
from tests.processes.attempts import RunningAttempt, wait_for

pytestmark = pytest.mark.processes
Run = Callable[..., RunningAttempt]
NICEST = 19


@pytest.fixture(autouse=True)
def _may() -> None:
    if not caps.can_restore():
        pytest.skip("this account may not take niceness back")


def nices(runner: int) -> list[int]:
    children = process_tree.descendants(runner)
    return [os.getpriority(os.PRIO_PROCESS, process.pid) for process in children]


def test_all_processes_of_a_job_step_back_and_forward(run: Run) -> None:
    started = run("/bin/sh", "-c", "sleep 60 & sleep 60; true").started()
    runner, ticks = started.runner_pid, started.runner_start_ticks
    wait_for(lambda: len(nices(runner)) == 3)
    base = os.getpriority(os.PRIO_PROCESS, runner)

    assert caps.raise_niceness(runner, ticks, 7, idle_io=True) == 3
    assert nices(runner) == [base + 7] * 3
    assert os.getpriority(os.PRIO_PROCESS, runner) == base
    assert caps.raise_niceness(runner, ticks, 7, idle_io=True) == 0

    assert caps.restore_niceness(runner, ticks, 7) == 3
    assert nices(runner) == [base] * 3


def test_who_made_itself_nicer_keeps_it(run: Run) -> None:
    started = run("/usr/bin/nice", "-n", "15", "/bin/sleep", "60").started()
    runner, ticks = started.runner_pid, started.runner_start_ticks
    base = os.getpriority(os.PRIO_PROCESS, runner)
    wait_for(lambda: nices(runner) == [min(base + 15, NICEST)])

    caps.raise_niceness(runner, ticks, 7, idle_io=False)
    caps.restore_niceness(runner, ticks, 7)

    assert nices(runner) == [min(base + 15, NICEST)]


def test_a_reused_pid_is_left_alone() -> None:
    assert caps.raise_niceness(os.getpid(), 1, 5, idle_io=False) == 0
    assert caps.raise_niceness(2**22 + 1, 1, 5, idle_io=False) == 0
