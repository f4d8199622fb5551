"""One job enters few modules from POST to its page, and for its placement."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A step that runs seldom may fall into one count, and adds its modules.
TRIALS = 3


@pytest.mark.processes
def test_a_job_enters_no_more_modules_than_the_limits() -> None:
    for _ in range(TRIALS):
        count = subprocess.run(
            [sys.executable, "-m", "tests.bench.count_hops"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if count.returncode == 0:
            break

    assert count.returncode == 0, count.stdout + count.stderr
    assert "POST to page" in count.stdout
    assert "one placement" in count.stdout
