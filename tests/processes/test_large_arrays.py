from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.pace import Stopwatch
from tests.processes.service import Service, token, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow]
SIZE = 10_000


class Neighbour(threading.Thread):
    """Another client: asks for /healthz and submits a job, again and again, until it is stopped."""

    def __init__(self, address: str, headers: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self._http = httpx.Client(base_url=address, headers=headers, timeout=60)
        self._over = threading.Event()
        self.health: list[int] = []
        self.submit_s: list[float] = []

    def run(self) -> None:
        body = {"command": "true", "gpus": 0, "begin": "in 9h"}
        while not self._over.wait(0.05):
            self.health.append(self._http.get("/healthz").status_code)
            watch = Stopwatch()
            assert self._http.post("/api/jobs/", json=body).status_code == 201
            self.submit_s.append(watch.seconds)

    def stop(self) -> None:
        self._over.set()
        self.join()
        self._http.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "data") as running:
        wait_until(lambda: running.healthz().status_code == 200, 20, "a healthy service")
        yield running


def test_cancelling_ten_thousand_jobs_stops_no_one_else(service: Service) -> None:
    headers = {"Authorization": f"Bearer {token(service)}"}
    neighbour = Neighbour(service.address, headers)
    with httpx.Client(base_url=f"{service.address}api/", headers=headers, timeout=120) as api:
        body = {"command": "true", "begin": "in 9h", "array": f"0-{SIZE - 1}"}
        neighbour.start()
        watch = Stopwatch()
        made = api.post("jobs/", json=body).json()
        submitted_s = watch.seconds
        assert len(made["array"]) == SIZE
        # The planner explains each of them meanwhile.
        time.sleep(3)

        watch = Stopwatch()
        answer = api.post(f"jobs/{made['id']}/cancel/", params={"array": "true"})
        cancelled_s = watch.seconds
        time.sleep(2)
        last = api.get(f"jobs/{made['array'][-1]}/").json()
    neighbour.stop()

    assert answer.json()["cancelled"]
    assert last["outcome"] == "cancelled"
    # About 0.5 s each on a core of 2.5 GHz that has nothing else to do.
    assert cancelled_s < 2
    assert submitted_s < 2
    assert set(neighbour.health) == {200}
    assert max(neighbour.submit_s) < 2
