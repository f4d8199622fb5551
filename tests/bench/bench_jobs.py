"""How fast jobs start, end and drain: python -m tests.bench.bench_jobs [jobs] [drained].

Everything is real: `gpucoord up`, HTTP, the loop, a runner per job; two places for jobs.
A job prints the clock: from the acknowledged submission to that is "submit -> running"; from
that to the row that says finished, as another process reads it, is "exit -> recorded".
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from tests.processes.service import Service

PLACES = 2
CLOCK = ["/bin/date", "+%s.%N"]
POLL_S = 0.001


def main() -> None:
    latencies, drained = (int(a) for a in (*sys.argv[1:], "200", "300")[:2])
    with tempfile.TemporaryDirectory(prefix="gpucoord-bench-") as folder:
        data = Path(folder) / "data"
        service = Service(data, GPUCOORD_CPU_JOBS=str(PLACES), GPUCOORD_SIMULATED_GPUS="2")
        with service, Client(service, data) as client:
            client.warm_up()
            report("submit -> running", "exit -> recorded", client.latencies(latencies))
            print(f"drain, {PLACES} places        {client.drain(drained):7.1f} jobs/s")


def report(first: str, second: str, pairs: Sequence[tuple[float, float]]) -> None:
    print(f"{'ms':24}{'p50':>8}{'p90':>8}{'p99':>8}{'max':>8}   n={len(pairs)}")
    for name, values in zip((first, second), zip(*pairs, strict=True), strict=True):
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        figures = (cuts[49], cuts[89], cuts[98], max(values))
        print(f"{name:24}" + "".join(f"{1000 * figure:8.1f}" for figure in figures))


class Client:
    """Submits by HTTP with a token; reads what came of it straight from the database."""

    def __init__(self, service: Service, data: Path) -> None:
        self._data = data
        self._rows = sqlite3.connect(f"file:{data}/gpucoord.sqlite3?mode=ro", uri=True)
        token = _token(data)
        self._http = httpx.Client(
            base_url=service.address, headers={"Authorization": f"Bearer {token}"}
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self._rows.close()

    def warm_up(self) -> None:
        for _ in range(5):
            self._wait(self._submit(CLOCK))

    def latencies(self, count: int) -> list[tuple[float, float]]:
        return [self._one() for _ in range(count)]

    def drain(self, count: int) -> float:
        """The places are held until all are queued; then the clock runs."""
        gate = self._data / "gate"
        hold = f"until [ -e {gate} ]; do sleep 0.01; done"
        for _ in range(PLACES):
            self._submit(["/bin/sh", "-c", hold])
        jobs = [self._submit(["/bin/true"]) for _ in range(count)]
        gate.touch()
        start = time.time()
        while self._open():
            time.sleep(POLL_S)
        taken = time.time() - start
        marks = ",".join(map(str, jobs))
        good = self._ask(
            f"SELECT count(*) FROM scheduler_job WHERE outcome='succeeded' AND id IN ({marks})"
        )
        assert good == count, f"{good} of {count} succeeded"
        return count / taken

    def _one(self) -> tuple[float, float]:
        job = self._submit(CLOCK)
        acknowledged = time.time()
        recorded = self._wait(job)
        ran = float((self._data / "jobs" / str(job) / "1" / "output.log").read_text())
        return ran - acknowledged, recorded - ran

    def _submit(self, argv: list[str]) -> int:
        answer = self._http.post("/api/jobs/", json={"argv": argv, "gpus": 0})
        assert answer.status_code == 201, answer.text
        return int(answer.json()["id"])

    def _wait(self, job: int) -> float:
        while self._ask(f"SELECT state FROM scheduler_job WHERE id={job}") != "finished":
            time.sleep(POLL_S)
        return time.time()

    def _open(self) -> int:
        return int(str(self._ask("SELECT count(*) FROM scheduler_job WHERE state<>'finished'")))

    def _ask(self, question: str) -> object:
        return self._rows.execute(question).fetchone()[0]


def _token(data: Path) -> str:
    """Made by the service's own code, in this process, for its first administrator."""
    os.environ |= {"GPUCOORD_DATA": str(data), "DJANGO_SETTINGS_MODULE": "gpucoord_site.settings"}
    import django

    django.setup()
    from django.contrib.auth.models import User
    from django.db import connection
    from django.utils import timezone

    from monitor.owners.rows import create_token

    _, text = create_token(User.objects.get(is_superuser=True), timezone.now(), name="bench")
    connection.close()
    return text


if __name__ == "__main__":
    main()
