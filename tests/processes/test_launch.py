from __future__ import annotations

import os
from pathlib import Path

import pytest

from scheduler.runner.launch import fork_job
from scheduler.runner.spec import Spec

pytestmark = pytest.mark.processes
TRIALS = 30


def test_a_job_leads_its_own_session_before_anybody_knows_its_pid(tmp_path: Path) -> None:
    spec = Spec(job_id=1, attempt=1, nonce="n", argv=["/bin/true"], cwd="/", env={}, account="root")
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    own = 0
    for _ in range(TRIALS):
        child = fork_job(spec, log)
        own += os.getsid(child.pid) == child.pid
        child.go()
        os.waitpid(child.pid, 0)
        assert child.failure() is None
    os.close(log)

    assert own == TRIALS
