"""Fixtures for tests that run real jobs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler.runner import process_tree
from scheduler.runner.spawning import RunnerStarter
from tests.processes.attempts import NONCE, RunningAttempt


@pytest.fixture
def spawner() -> Iterator[RunnerStarter]:
    spawner = RunnerStarter()
    yield spawner
    spawner.close()


@pytest.fixture
def run(spawner: RunnerStarter, tmp_path: Path) -> Iterator[Callable[..., RunningAttempt]]:
    """run("sleep", "1", time_limit_s=…): start one attempt. What it leaves behind is killed."""

    def start(*argv: str, **changes: object) -> RunningAttempt:
        return RunningAttempt(spawner, tmp_path / "data" / "jobs" / "1" / "1", *argv, **changes)

    (tmp_path / "data" / "jobs").mkdir(parents=True)
    yield start
    process_tree.signal_all(process_tree.orphans(0, 0, NONCE), signal.SIGKILL)
