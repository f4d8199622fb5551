from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes
TRIALS = 30
PROGRAM = """
import os, pathlib, sys
from scheduler.runner.launch import fork_job
from scheduler.runner.spec import Spec
spec = Spec(job_id=1, attempt=1, nonce="n", argv=["/bin/true"], cwd="/", env={}, account="root")
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
for _ in range(int(sys.argv[2])):
    child = fork_job(spec, log, pathlib.Path())
    print(os.getsid(child.pid) == child.pid)
    child.go()
    os.waitpid(child.pid, 0)
    assert child.failure() is None
"""


def test_a_job_leads_its_own_session_before_anybody_knows_its_pid(tmp_path: Path) -> None:
    """In a process of its own: like a runner it has one thread."""
    argv = [sys.executable, "-c", PROGRAM, str(tmp_path / "log"), str(TRIALS)]
    output = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout

    assert output.split() == ["True"] * TRIALS
