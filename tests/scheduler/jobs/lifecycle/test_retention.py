from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client

from monitor.facts.readings import FileSystemSpace
from monitor.models import PolicyValues
from monitor.runtime.probes import disk_space
from scheduler.jobs.steps import Clearer
from scheduler.models import Attempt, Job
from scheduler.runner import clearing
from tests import jobs_made
from tests.builders import NOW

pytestmark = pytest.mark.django_db
LONG_AFTER = NOW + timedelta(days=100)


def _clear(data: Path, **changes: object) -> list[int]:
    return Clearer("gpubox", data, **changes).step(LONG_AFTER)  # type: ignore[arg-type]


def _saved(data: Path, job: Job, name: str = "last.pt", size: int = 10) -> Path:
    path = data / "jobs" / str(job.pk) / "checkpoint" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_what_an_ended_job_left_goes_with_all_its_attempts(alice: User, data: Path) -> None:
    job = jobs_made.finished(alice)
    log, saved = jobs_made.write_log(data, job, b"hello\n"), _saved(data, job)

    assert _clear(data) == [job.pk]
    assert not log.exists()
    assert not saved.exists()
    assert Attempt.objects.get().files_gone_at == LONG_AFTER
    assert os.listdir(data / "jobs") == [".cleared"]
    assert os.listdir(data / "jobs" / ".cleared") == []
    assert _clear(data) == []


def test_nobody_elses_files_go(alice: User, data: Path) -> None:
    running, waiting = jobs_made.running(alice), jobs_made.waiting(alice)
    young = jobs_made.finished(alice)
    Job.objects.filter(pk=young.pk).update(ended_at=LONG_AFTER - timedelta(days=80))
    elsewhere = jobs_made.finished(alice)
    elsewhere.attempts.update(host="another")
    kept = [jobs_made.write_log(data, job, b"x") for job in (running, waiting, young, elsewhere)]

    assert _clear(data) == []
    assert all(log.exists() for log in kept)


def test_the_oldest_go_sooner_when_they_take_too_much(
    alice: User, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PolicyValues.objects.create(name="keeping", values={"days": 1000.0})
    space = FileSystemSpace(used_bytes=4_000_000, available_bytes=6_000_000)
    monkeypatch.setattr(disk_space, "read", lambda _: space)
    jobs = [jobs_made.finished(alice) for _ in range(3)]
    for number, job in enumerate(jobs):
        _saved(data, job, size=900_000)
        Job.objects.filter(pk=job.pk).update(ended_at=NOW + timedelta(days=number))

    assert _clear(data) == [jobs[0].pk]


def test_checkpoints_that_lie_elsewhere_go_too(alice: User, data: Path, tmp_path: Path) -> None:
    job, chosen = jobs_made.finished(alice), tmp_path / "large"
    (chosen / str(job.pk) / "checkpoint").mkdir(parents=True)

    assert _clear(data, checkpoints=chosen) == [job.pk]
    assert os.listdir(chosen) == [".cleared"]


def test_links_lead_nowhere(alice: User, data: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    job, other = jobs_made.finished(alice), jobs_made.finished(alice)
    saved = _saved(data, job)
    saved.with_name("to-folder").symlink_to(outside)
    saved.with_name("to-file").symlink_to(outside / "precious")
    (data / "jobs" / str(other.pk)).symlink_to(outside)

    assert _clear(data) == [job.pk, other.pk]
    assert (outside / "precious").read_text() == "x"
    assert outside.stat().st_mode & 0o777 == 0o755
    assert os.listdir(data / "jobs" / ".cleared") == []


def test_locked_folders_go(alice: User, data: Path) -> None:
    job = jobs_made.finished(alice)
    locked = _saved(data, job).parent / "locked"
    locked.mkdir()
    (locked / "file").touch()
    locked.chmod(0)

    assert _clear(data) == [job.pk]
    assert os.listdir(data / "jobs" / ".cleared") == []


@pytest.fixture
def few_files() -> Iterator[None]:
    """Only so many may be open as a test needs that does not hold one for each folder."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most + 30, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_files")
def test_however_deep_folders_are_they_go(data: Path) -> None:
    (data / "jobs" / "7").joinpath(*["d"] * 100).mkdir(parents=True)

    assert clearing.move_aside(data / "jobs", "7")
    assert clearing.empty(data / "jobs", time.monotonic() + 20)
    assert os.listdir(data / "jobs" / ".cleared") == []


def test_what_is_not_done_in_time_is_done_the_next_time(data: Path) -> None:
    jobs = data / "jobs"
    (jobs / "7" / "checkpoint").mkdir(parents=True)

    assert clearing.move_aside(jobs, "7")
    assert not (jobs / "7").exists()
    assert not clearing.empty(jobs, time.monotonic())
    assert clearing.empty(jobs, time.monotonic() + 5)
    assert os.listdir(jobs / ".cleared") == []


def test_a_folder_of_somebody_else_is_not_used_for_what_goes(data: Path, tmp_path: Path) -> None:
    (data / "jobs" / "7").mkdir(parents=True)
    (data / "jobs" / ".cleared").symlink_to(tmp_path)

    assert not clearing.move_aside(data / "jobs", "7")
    assert (data / "jobs" / "7").exists()


def test_its_page_says_that_the_log_was_removed(
    alice: User, data: Path, as_user: Callable[[User], Client]
) -> None:
    job = jobs_made.finished(alice)
    jobs_made.write_log(data, job, b"hello\n")
    _clear(data)

    client = as_user(alice)
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert "The log was removed 99 d 23 h after the job ended." in page
    assert f'class="small" href="/api/jobs/{job.pk}/log/' not in page
    answer = client.get(f"/api/jobs/{job.pk}/log/")
    assert (answer.status_code, "was removed" in answer.json()["detail"]) == (410, True)
