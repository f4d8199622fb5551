"""The disk with the data fills up and gets free again: nothing is lost, and the reason is told."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from gpucoord_site.http.errors import FULL
from tests.processes.service import NO_LIMITS_OF_THE_MACHINE, Service, token, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]
# Without it, the tiny disk of the test would delay all starts.
ANY_DISK = json.loads(NO_LIMITS_OF_THE_MACHINE)
ANY_DISK["constraints"] |= {"data_free_gib": 0}
# The supervisor looks twice a second.
WATCHED_S, MOST_REPORTS = 6, 8


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "data"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def service(disk: Path) -> Iterator[Service]:
    with Service(disk, GPUCOORD_POLICY=json.dumps(ANY_DISK)) as service:
        yield service


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


def submit(http: httpx.Client, command: str) -> httpx.Response:
    return http.post("api/jobs/", json={"command": command, "gpus": 0})


def job(http: httpx.Client, number: int) -> dict[str, object]:
    body: dict[str, object] = http.get(f"api/jobs/{number}/").json()
    return body


def test_a_full_disk_is_told_once_and_loses_no_job(service: Service, tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {token(service)}"}
    # Its first use can't be noted on a full disk.
    unused = {"Authorization": f"Bearer {token(service)}"}
    gate = tmp_path / "gate"
    with httpx.Client(base_url=service.address, headers=headers, timeout=60) as http:
        line = f"until [ -e {gate} ]; do sleep 0.05; done; exit 7"
        number = submit(http, line).json()["id"]
        wait_until(lambda: job(http, number)["state"] == "running", 30, "the job runs")

        filler = fill(service.data)
        wait_until(lambda: service.healthz().status_code == 503, 60, "the loops can't write")
        refused, read = submit(http, "true"), http.get("api/jobs/", headers=unused)
        wait_until(lambda: "SUPERVISOR_FAULT" in service.text(), 60, "the supervisor can't write")
        gate.touch()
        # Before, each look of the supervisor was logged.
        time.sleep(WATCHED_S)
        reports = len(re.findall("SUPERVISOR_FAULT|LOOP_ORPHANED", service.text()))
        filler.unlink()

        assert (refused.status_code, refused.json()["detail"]) == (503, FULL)
        assert read.status_code == 200
        assert reports <= MOST_REPORTS
        wait_until(lambda: job(http, number)["state"] == "finished", 60, "the job has ended")
        assert job(http, number)["exit_code"] == 7
        wait_until(lambda: submit(http, "true").status_code == 201, 60, "jobs are accepted again")
