"""A job near its memory limit is warned, asked to save its work, and ended without a cgroup."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.execution.policy import BoundsPolicy, outcome_of
from scheduler.facts.jobs import Outcome
from scheduler.runner.confine.cgroups import Cgroup
from scheduler.runner.confine.confinement import MemoryGuard, used_bytes
from scheduler.runner.process_tree import ProcessInfo
from scheduler.runner.spec import Bounds, Spec
from tests.builders import GIB

LIMIT = 10 * GIB


class Job:
    """A job with a cgroup folder, whose memory the test sets."""

    def __init__(
        self, folder: Path, *, has_limit: bool = True, process_limit: int | None = None
    ) -> None:
        self.folder, self.yield_file = folder / "cgroup", folder / "yield"
        self.folder.mkdir()
        if has_limit:
            (self.folder / "memory.max").write_text(str(LIMIT))
        self.log = folder / "log"
        spec = Spec(
            job_id=1, attempt=1, nonce="n", argv=[], cwd="/", env={}, account="",
            yield_file=str(self.yield_file), grace_s=5,
        )  # fmt: skip
        bounds = Bounds(memory_bytes=LIMIT, process_memory_bytes=process_limit)
        self.guard = MemoryGuard(spec, bounds, os.open(self.log, os.O_CREAT | os.O_WRONLY))

    def holds(self, gib: float, cache_gib: float = 0) -> None:
        stat = f"anon {int(gib * GIB)}\nfile {int(cache_gib * GIB)}\nshmem 0\n"
        (self.folder / "memory.stat").write_text(stat)
        self.guard._due = 0.0
        self.guard.beat([self.folder], lambda: [])

    @property
    def text(self) -> str:
        return self.log.read_text()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_job_far_from_its_limit_is_left_alone(job: Job) -> None:
    job.holds(7.9, cache_gib=50)

    assert (job.text, job.guard.has_requested_yield) == ("", False)


def test_it_is_warned_in_its_log_once(job: Job) -> None:
    for gib in (8.1, 8.2, 8.3):
        job.holds(gib)

    assert job.text.count("holds 8.1 GiB of its limit of 10 GiB") == 1
    assert not job.yield_file.exists()


def test_it_is_asked_to_save_its_work_before_the_kernel_kills_it(job: Job) -> None:
    job.holds(9.2)

    request = json.loads(job.yield_file.read_text())
    assert request["reason"] == "The job holds 9.2 GiB of its limit of 10 GiB of host memory."
    assert job.guard.has_requested_yield
    assert not job.guard.is_over


def test_the_request_ends_when_the_memory_is_free_again(job: Job) -> None:
    job.holds(9.2)
    job.holds(2)

    assert not job.yield_file.exists()


def test_a_request_of_the_scheduler_stays(job: Job) -> None:
    job.yield_file.write_text(json.dumps({"reason": "Job 7 needs its GPU.", "deadline": 1.0}))
    job.holds(9.2)
    job.holds(2)

    assert json.loads(job.yield_file.read_text())["reason"] == "Job 7 needs its GPU."


def test_with_a_cgroup_the_kernel_ends_it(job: Job) -> None:
    job.holds(11)

    assert not job.guard.is_over


def test_without_a_cgroup_limit_it_is_ended(tmp_path: Path) -> None:
    job = Job(tmp_path, has_limit=False)
    job.holds(11)

    assert job.guard.is_over
    assert "exceeds its limit of 10 GiB" in job.text


@pytest.fixture
def hungry() -> Iterator[subprocess.Popen[bytes]]:
    """A process with 64 MiB of its own."""
    code = "x = bytearray(64 * 1024**2); print(1, flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    with process:
        yield process
        process.kill()


def test_without_a_cgroup_the_memory_of_the_processes_counts(
    hungry: subprocess.Popen[bytes],
) -> None:
    process = ProcessInfo(hungry.pid, 1, 1, 1, 1)

    assert 64 <= used_bytes([], lambda: [process]) / 1024**2 < 200
    gone = ProcessInfo(2**22 - 1, 1, 1, 1, 1)
    assert used_bytes([], lambda: [gone]) == 0


def test_a_process_above_its_limit_ends_the_job_also_in_a_cgroup(
    tmp_path: Path, hungry: subprocess.Popen[bytes]
) -> None:
    job = Job(tmp_path, process_limit=32 * 1024**2)
    (job.folder / "memory.stat").write_text(f"anon {70 * 1024**2}\nshmem 0\n")
    job.guard._due = 0.0

    job.guard.beat([job.folder], lambda: [ProcessInfo(hungry.pid, 1, 1, 1, 1)])

    request = json.loads(job.yield_file.read_text())
    assert request["reason"].startswith(f"Process {hungry.pid} holds 0.0")
    assert job.guard.is_over
    assert f"because process {hungry.pid} exceeds its limit of 0.0312 GiB" in job.text


def test_processes_are_looked_at_only_if_the_job_could_reach_their_limit(tmp_path: Path) -> None:
    job = Job(tmp_path, process_limit=5 * GIB)
    (job.folder / "memory.stat").write_text(f"anon {2 * GIB}\nshmem 0\n")
    job.guard._due = 0.0

    def processes() -> list[ProcessInfo]:
        raise AssertionError("not needed")

    job.guard.beat([job.folder], processes)


def test_the_peak_is_that_of_the_whole_job_without_the_page_cache(job: Job) -> None:
    for gib in (2.0, 6.0, 3.0):
        job.holds(gib, cache_gib=50)

    assert job.guard.peak_bytes == 6 * GIB


def test_the_kernel_slows_a_job_down_before_it_kills_it(tmp_path: Path) -> None:
    for name in ("memory.high", "memory.max"):
        (tmp_path / name).write_text("max")

    Cgroup((tmp_path,)).limit(memory_bytes=1000)

    assert (tmp_path / "memory.high").read_text() == "900"
    assert (tmp_path / "memory.max").read_text() == "1000"


@pytest.mark.parametrize(
    ("pct", "host_gib", "limit_gib"),
    [
        (80.0, 1024, 819.2),
        (80.0, 64, 51.2),
        (80.0, None, None),
        (50.0, 64, 32),
        (100.0, 64, None),
    ],
)
def test_a_job_that_declares_nothing_has_a_limit(
    pct: float, host_gib: int | None, limit_gib: float | None
) -> None:
    policy = BoundsPolicy(default_memory_pct=pct)
    limit = policy.undeclared_bytes(None if host_gib is None else host_gib * GIB)

    assert limit == (None if limit_gib is None else int(limit_gib * GIB))


def test_a_process_is_limited_unless_its_job_declares_more() -> None:
    assert BoundsPolicy().process_bytes(1024 * GIB) == 80 * GIB
    assert BoundsPolicy().process_bytes(64 * GIB) == int(51.2 * GIB)
    assert BoundsPolicy().process_bytes(None) == 80 * GIB
    assert BoundsPolicy(process_memory_gib=None).process_bytes(None) is None


def test_a_job_that_was_ended_for_its_memory_has_failed() -> None:
    ended = outcome_of(exit_code=0, stopped="memory", cancel_requested=False)

    assert ended[0] is Outcome.FAILED
