"""Fixtures for tests that run real jobs."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import websockets

from scheduler.runner import process_tree
from scheduler.runner.launch import RunnerStarter
from tests.processes.attempts import NONCE, RunningAttempt
from tests.processes.person import USERADD
from tests.processes.service import ROOT


@pytest.fixture(scope="module")
def client() -> Iterator[Path]:
    """The client's modules, where every account may read them. Homes are beside it."""
    folder = Path(tempfile.mkdtemp(prefix="gpucoord-accounts-"))
    client = folder / "client"
    without = shutil.ignore_patterns("__pycache__")
    for package in ("gpucoord_site", "monitor", "scheduler"):
        shutil.copytree(ROOT / package, client / package, ignore=without)
    source = Path(websockets.__file__).parent
    # Without the module for another version of Python.
    without = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(source, client / "websockets", ignore=without)
    subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
    yield client
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def accounts(client: Path) -> Iterator[list[pwd.struct_passwd]]:
    names = [f"gpc-{word}-{os.getpid()}" for word in ("alice", "bob")]
    try:
        for name in names:
            home = ["-m", "-d", str(client.parent / name), "-s", "/bin/sh", name]
            subprocess.run([USERADD, *home], check=True, capture_output=True)
        yield [pwd.getpwnam(name) for name in names]
    finally:
        for name in names:
            subprocess.run(["userdel", name], check=False, capture_output=True)


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
