from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpucoord_site import yielding
from scheduler.jobs import policy


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path where the request would appear."""
    monkeypatch.setenv("GPUCOORD_YIELD_FILE", str(tmp_path / "1.yield"))
    return tmp_path / "1.yield"


def test_a_program_outside_gpucoord_never_has_to_yield(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUCOORD_YIELD_FILE", raising=False)

    assert not yielding.should_yield()
    assert (yielding.why(), yielding.seconds_left()) == ("", None)


def test_a_job_yields_once_it_is_asked(asked: Path) -> None:
    assert not yielding.should_yield()
    asked.write_text(json.dumps({"reason": "The owner is there.", "deadline": time.time() + 30}))

    assert yielding.should_yield()
    assert yielding.why() == "The owner is there."
    left = yielding.seconds_left()
    assert left is not None
    assert 25 < left <= 30


def test_no_time_is_left_after_the_deadline(asked: Path) -> None:
    asked.write_text(json.dumps({"reason": "", "deadline": 0}))

    assert yielding.seconds_left() == 0


def test_what_cannot_be_read_still_means_that_it_is_to_leave(asked: Path) -> None:
    asked.write_text("{")

    assert yielding.should_yield()
    assert yielding.seconds_left() is None


def test_it_leaves_with_the_code_that_gpucoord_understands() -> None:
    with pytest.raises(SystemExit) as left:
        yielding.leave_saved()
    assert left.value.code == policy.SAVED_EXIT_CODE


def test_it_works_alone_beside_a_job_and_needs_nothing_else(tmp_path: Path) -> None:
    copy = tmp_path / "yielding.py"
    copy.write_bytes(Path(yielding.__file__).read_bytes())
    look = "import sys, yielding; print(yielding.should_yield(), 'django' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", look], cwd=tmp_path, capture_output=True, check=True
    )

    assert done.stdout == b"False False\n"


def test_importing_it_from_gpucoord_loads_no_django() -> None:
    look = "import sys, gpucoord_site.yielding; print('django' in sys.modules)"
    root = Path(yielding.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-S", "-c", look], cwd=root, capture_output=True, check=True
    )

    assert done.stdout == b"False\n"
