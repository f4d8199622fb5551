"""Upgrade from the previous release while jobs run, wait, and end without gpucoord."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from scheduler.runner import files
from tests.pace import LONGEST_S
from tests.processes.service import ROOT, Service, kill_jobs, lives, token, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow]
# The build before the newest one, as long as no release is tagged.
PREVIOUS = "acca9e2f7d15a511e71edbbadf721b83a148c031"


def git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, check=False)


def previous_release() -> str:
    """The newest tag before this commit, else PREVIOUS; the test is skipped without history."""
    tag = git("describe", "--tags", "--abbrev=0", "HEAD~1")
    revision = tag.stdout.decode().strip() if tag.returncode == 0 else PREVIOUS
    if git("cat-file", "-e", f"{revision}^{{commit}}").returncode:
        pytest.skip(f"the history of this checkout does not contain {revision}")
    return revision


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The source of the previous release."""
    folder = tmp_path / "earlier"
    folder.mkdir()
    archive = git("archive", "--format=tar", previous_release())
    assert archive.returncode == 0, archive.stderr
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "data"
    yield folder
    kill_jobs(folder)


@contextmanager
def serving(data: Path, **options: Any) -> Iterator[Service]:
    """A service that leaves its running jobs behind, with one place for jobs without a GPU."""
    service = Service(data, GPUCOORD_CPU_JOBS="1", **options).start()
    try:
        yield service
    finally:
        service.process.terminate()
        service.process.wait(LONGEST_S)


class Jobs:
    """Jobs by REST, as a user of this service sees them."""

    def __init__(self, service: Service, secret: str = "") -> None:
        self.token = secret or token(service)
        headers = {"Authorization": f"Bearer {self.token}"}
        self._api = httpx.Client(base_url=f"{service.address}api/", headers=headers, timeout=30)

    def submit(self, command: str, **fields: Any) -> int:
        made = self._api.post("jobs/", json={"command": command, **fields})
        assert made.status_code == 201, made.text
        return int(made.json()["id"])

    def get(self, job: int) -> dict[str, Any]:
        body: dict[str, Any] = self._api.get(f"jobs/{job}/").json()
        return body

    def reach(self, job: int, state: str) -> dict[str, Any]:
        def poll() -> dict[str, Any] | None:
            body = self.get(job)
            return body if body["state"] == state else None

        return wait_until(poll, 30, f"job {job} is {state}")

    def log(self, job: int) -> list[str]:
        return self._api.get(f"jobs/{job}/log/").text.split()

    def close(self) -> None:
        self._api.close()


def waits_for(gate: Path) -> str:
    return f"until [ -e {gate} ]; do sleep 0.05; done"


def test_the_next_release_adopts_running_jobs_and_starts_waiting_ones(
    earlier: Path, data: Path, tmp_path: Path
) -> None:
    gate, early_gate = tmp_path / "gate", tmp_path / "early-gate"
    with serving(data, root=earlier) as before, closing(Jobs(before)) as jobs:
        secret = jobs.token
        running = jobs.submit(f"echo before; {waits_for(gate)}; echo after; exit 7", gpus=1)
        ending = jobs.submit(f"{waits_for(early_gate)}; echo alone; exit 3", gpus=0)
        jobs.reach(running, "running")
        jobs.reach(ending, "running")
        waiting = jobs.submit("echo waited", gpus=0)
        assert jobs.get(waiting)["state"] == "queued"
    started = files.read_json(files.attempt_folder(data, running, 1) / files.STARTED)
    assert started is not None
    assert lives(started["pid"])
    early_gate.touch()
    result = files.attempt_folder(data, ending, 1) / files.RESULT
    wait_until(result.exists, 30, "the end of a job without gpucoord")

    with serving(data) as after, closing(Jobs(after, secret)) as jobs:
        alone = jobs.reach(ending, "finished")
        assert jobs.get(running)["state"] == "running"
        gate.touch()
        adopted = jobs.reach(running, "finished")
        late = jobs.reach(waiting, "finished")
        logs = [jobs.log(job) for job in (running, ending, waiting)]

    assert (alone["outcome"], alone["exit_code"]) == ("failed", 3)
    assert (adopted["outcome"], adopted["exit_code"]) == ("failed", 7)
    assert (late["outcome"], late["exit_code"]) == ("succeeded", 0)
    assert logs == [["before", "after"], ["alone"], ["waited"]]
    for job in (running, ending, waiting):
        assert len(list((data / "jobs" / str(job)).glob("[0-9]*/"))) == 1
