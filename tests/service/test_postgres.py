from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.processes.service import ROOT, Service, wait_until
from tests.service.postgres_cluster import cluster

pytestmark = [pytest.mark.postgres, pytest.mark.processes]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with cluster() as address:
        yield address


@pytest.fixture(scope="module")
def service(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    data = tmp_path_factory.mktemp("postgres") / "data"
    with Service(data, DATABASE_URL=url, GPUCOORD_NODE="here") as running:
        yield running


@pytest.fixture
def api(service: Service) -> Iterator[httpx.Client]:
    token = subprocess.run(
        [sys.executable, "-m", "gpucoord_site", "token", "admin"],
        env=service._env,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()[-1]
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=f"{service.address}api/", headers=headers) as client:
        yield client


def _finished(api: httpx.Client, job_id: object) -> dict[str, object] | None:
    job: dict[str, object] = api.get(f"jobs/{job_id}/").json()
    return job if job["state"] == "finished" else None


def test_all_loops_run_on_it(service: Service) -> None:
    health = wait_until(lambda: _healthy(service), 15, "a healthy service")

    assert set(health["loops"]) >= {"sampler", "controller", "scheduler"}


def _healthy(service: Service) -> dict[str, dict[str, object]] | None:
    answer = service.healthz()
    return answer.json() if answer.status_code == 200 else None


def test_nothing_is_kept_in_sqlite_then(service: Service) -> None:
    assert list(service.data.glob("*.sqlite3*")) == []


def test_a_job_runs_on_it_from_end_to_end(api: httpx.Client) -> None:
    made = api.post("jobs/", json={"command": "echo $GPUCOORD_JOB_ID; exit 3", "gpus": 1})

    job = wait_until(lambda: _finished(api, made.json()["id"]), 15, "the job's end")

    assert made.status_code == 201
    assert (job["outcome"], job["exit_code"]) == ("failed", 3)
    assert api.get(f"jobs/{job['id']}/log/").text.strip() == str(job["id"])


def test_a_job_of_another_host_starts_at_once(url: str, tmp_path: Path) -> None:
    """Only PostgreSQL's NOTIFY can have told this host; its own clock looks twice a minute."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE other_host")
    own = url.removesuffix("postgres") + "other_host"
    there = {"GPUCOORD_NODE": "there", "GPUCOORD_DATA": str(tmp_path / "there")}
    rare = "tests.service.rare_loops"

    with Service(tmp_path / "here", rare, DATABASE_URL=own, GPUCOORD_NODE="first") as first:
        wait_until(lambda: _healthy(first), 15, "a healthy service")
        ran = subprocess.run(
            [sys.executable, "-m", "tests.service.other_host"],
            env=first._env | there,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )

    assert ran.returncode == 0, ran.stderr
    seconds = [float(line) for line in ran.stdout.split()]
    assert max(seconds) < 5, seconds


def test_two_hosts_that_plan_at_once_keep_the_quota_of_each_user(url: str, tmp_path: Path) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE planners")
    there = {"DATABASE_URL": url.removesuffix("postgres") + "planners"}
    folder = {"GPUCOORD_DATA": str(tmp_path), "DJANGO_SETTINGS_MODULE": "gpucoord_site.settings"}

    ran = subprocess.run(
        [sys.executable, "-m", "tests.service.two_planners"],
        env={**os.environ, **there, **folder},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert (ran.returncode, ran.stdout.split()) == (0, ["1", "1"]), ran.stderr[-3000:]


def test_the_sampler_and_the_scheduler_lock_gpus_in_one_order(url: str, tmp_path: Path) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE locks")
    there = {"DATABASE_URL": url.removesuffix("postgres") + "locks"}
    folder = {"GPUCOORD_DATA": str(tmp_path), "DJANGO_SETTINGS_MODULE": "gpucoord_site.settings"}

    ran = subprocess.run(
        [sys.executable, "-m", "tests.service.gpu_locks"],
        env={**os.environ, **there, **folder},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert (ran.returncode, ran.stdout.split()) == (0, ["sample", "end_jobs"]), ran.stderr[-3000:]


def test_check_names_the_server_and_its_tables(service: Service) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "gpucoord_site", "check"],
        env=service._env,
        capture_output=True,
        text=True,
    )

    assert "PostgreSQL postgres on 127.0.0.1, version " in ran.stdout
    assert "up to date" in ran.stdout
    assert "secret" not in ran.stdout
