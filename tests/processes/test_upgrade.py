"""Upgrade from the previous release while jobs run, wait, and end without gpucoord.

The tables are those of a new database afterwards.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from scheduler.runner import files
from tests.pace import LONGEST_S
from tests.processes.service import ROOT, Service, kill_jobs, lives, token, wait_until
from tests.service.postgres_cluster import program, server
from tests.service.test_first_tables import schema

pytestmark = [pytest.mark.processes, pytest.mark.slow]
# The build before the newest one, as long as no release is tagged.
PREVIOUS = "746e64ae46b986cbd447cf324341b5cdc90062ea"


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


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The environment that names the database; empty for the one in the data folder."""
    if request.param == "sqlite":
        yield {}
        return
    with server() as postgres:
        yield {"DATABASE_URL": postgres.url}


def tables(data: Path, database: dict[str, str]) -> object:
    """The definitions of all tables and indexes, in an order of their own."""
    if database:
        argv = [program("pg_dump"), "--schema-only", "--no-owner", database["DATABASE_URL"]]
        dump = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        lines = (line.strip().rstrip(",") for line in dump.splitlines())
        return sorted(line for line in lines if line and not line.startswith(("--", "\\")))
    with closing(sqlite3.connect(data / "gpucoord.sqlite3")) as file:
        return schema(lambda sql: file.execute(sql).fetchall())


def new_tables(folder: Path, database: dict[str, str]) -> object:
    """Those of a database that this build makes."""
    if database:
        url = database["DATABASE_URL"]
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE fresh")
        database = {"DATABASE_URL": f"{url.rpartition('/')[0]}/fresh"}
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    env |= {"GPUCOORD_DATA": str(folder), "PYTHONPATH": str(ROOT), **database}
    argv = [sys.executable, "-m", "gpucoord_site", "migrate", "--verbosity=0"]
    subprocess.run(argv, env=env, cwd=ROOT, check=True)
    return tables(folder, database)


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
    earlier: Path, data: Path, database: dict[str, str], tmp_path: Path
) -> None:
    gate, early_gate = tmp_path / "gate", tmp_path / "early-gate"
    with serving(data, root=earlier, **database) as before, closing(Jobs(before)) as jobs:
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

    with serving(data, **database) as after, closing(Jobs(after, secret)) as jobs:
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
    assert tables(data, database) == new_tables(tmp_path / "new", database)
