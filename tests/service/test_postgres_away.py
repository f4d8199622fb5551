"""PostgreSQL is killed and comes back: running jobs go on, and nothing is lost or run twice.

GPUCOORD_TEST_AWAY_S: how long it is away, for a longer run by hand.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpucoord_site.http.errors import UNAVAILABLE
from tests.processes.service import Service, token, wait_until
from tests.service.postgres_cluster import server

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(400),
]
AWAY_S = float(os.environ.get("GPUCOORD_TEST_AWAY_S", "6"))


def test_running_jobs_go_on_and_nothing_is_lost_while_postgresql_is_away(tmp_path: Path) -> None:
    with server() as postgres, Service(tmp_path / "data", DATABASE_URL=postgres.url) as service:
        headers = {"Authorization": f"Bearer {token(service)}"}
        with httpx.Client(base_url=service.address, headers=headers, timeout=60) as http:
            ends = submit(http, f"sleep {AWAY_S / 2}; echo ends; exit 7")
            stays = submit(http, f"sleep {AWAY_S + 3}; echo stays; exit 5")
            waits = submit(http, "echo waited; exit 3", after=stays)
            wait_until(lambda: states(http, ends, stays) == {"running"}, 30, "both jobs run")

            postgres.stop()
            stopped = time.monotonic()
            answers = [http.get("api/jobs/"), http.get("", headers={"Cookie": COOKIE})]
            health = service.healthz()
            time.sleep(max(0.0, AWAY_S - (time.monotonic() - stopped)))
            late = http.get("api/jobs/")
            postgres.start()

            assert {answer.status_code for answer in (*answers, late)} == {503}
            assert answers[0].json()["detail"] == UNAVAILABLE
            assert "Running jobs continue; new jobs start" in answers[1].text
            assert health.status_code == 503
            wait_until(lambda: http.get("api/jobs/").status_code == 200, 60, "REST works again")
            jobs = (ends, stays, waits)
            wait_until(lambda: states(http, *jobs) == {"finished"}, 60, "all jobs have ended")
            assert [seen(http, job) for job in jobs] == [
                (7, 1, "ends\n"),
                (5, 1, "stays\n"),
                (3, 1, "waited\n"),
            ]
            wait_until(lambda: service.healthz().status_code == 200, 60, "a healthy service")


# Of a session, so that the page needs the database.
COOKIE = f"gpucoord_session={'x' * 32}"


def submit(http: httpx.Client, command: str, after: int | None = None) -> int:
    body: dict[str, Any] = {"command": command, "gpus": 0}
    answer = http.post("api/jobs/", json=body | ({"after": after} if after else {}))
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


def states(http: httpx.Client, *jobs: int) -> set[str]:
    return {http.get(f"api/jobs/{job}/").json()["state"] for job in jobs}


def seen(http: httpx.Client, job: int) -> tuple[int, int, str]:
    """The exit code, the number of attempts and the log."""
    body = http.get(f"api/jobs/{job}/").json()
    return body["exit_code"], len(body["attempts"]), http.get(f"api/jobs/{job}/log/").text
