"""How fast jobs are taken and drained: python -m tests.bench.bench_submit [jobs].

task-spooler (`tsp`, Debian: task-spooler) drains as many in the same run, with two places, too.
The nearest to an empty view of the server is `/healthz`.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.bench_jobs import PLACES, POLL_S, Client
from tests.processes.service import Service

BATCH = 1000
SINGLE = 200
# A free-running job, so that nothing is drained while requests are counted.
HOLD_S = 600


def main() -> None:
    drained = int((*sys.argv[1:], "300")[0])
    with tempfile.TemporaryDirectory(prefix="gpucoord-bench-") as folder:
        data = Path(folder) / "data"
        with Service(data, GPUCOORD_CPU_JOBS=str(PLACES)) as service, Client(service, data) as ours:
            ours.warm_up()
            drain = ours.drain(drained)
            latency = statistics.median(first for first, _ in ours.latencies(50))
            view, single, batch = _rates(ours)
    print(f"empty view                {view:8.0f} requests/s")
    print(f"single submissions        {single:8.0f} jobs/s = {single / view:.2f} of the empty view")
    print(f"batch of {BATCH}             {batch:8.0f} jobs/s")
    print(f"drain, {PLACES} places           {drain:8.1f} jobs/s")
    print(f"submit -> running, p50    {1000 * latency:8.1f} ms")
    if shutil.which("tsp") is None:
        print("task-spooler is not installed")
        return
    with tempfile.TemporaryDirectory(prefix="tsp-bench-") as folder:
        theirs = TaskSpooler(Path(folder))
        rate, start = theirs.drain(drained), theirs.latency(50)
        theirs.close()
    print(f"task-spooler: drain       {rate:8.1f} jobs/s; ours is {drain / rate:.2f} of it")
    times = f"ours is {latency / start:.1f} times it"
    print(f"task-spooler: start, p50  {1000 * start:8.1f} ms; {times}")


def _rates(client: Client) -> tuple[float, float, float]:
    """Requests and jobs per second: empty view, single submissions, one batch."""
    holders = [client._submit(["/bin/sleep", str(HOLD_S)]) for _ in range(PLACES)]
    begin = time.time()
    for _ in range(SINGLE):
        assert client._http.get("/healthz").status_code == 200
    view = SINGLE / (time.time() - begin)
    begin = time.time()
    for _ in range(SINGLE):
        client._submit(["/bin/true"])
    single = SINGLE / (time.time() - begin)
    body = json.dumps({"jobs": [{"argv": ["/bin/true"], "gpus": 0}] * BATCH})
    begin = time.time()
    headers = {"content-type": "application/json"}
    answer = client._http.post("/api/jobs/batch/", content=body, headers=headers, timeout=60)
    batch = BATCH / (time.time() - begin)
    assert len(answer.json()["ids"]) == BATCH
    for job in holders:
        client._http.post(f"/api/jobs/{job}/cancel/")
    for job in holders:
        # Otherwise it outlives the service.
        client._wait(job)
    return view, single, batch


class TaskSpooler:
    """A queue of its own with as many places."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._env = os.environ | {"TS_SOCKET": str(folder / "socket"), "TMPDIR": str(folder)}
        self._run("-S", str(PLACES))

    def drain(self, count: int) -> float:
        """The places are held until all are queued; then the clock runs."""
        gate = self._folder / "gate"
        hold = f"until [ -e {gate} ]; do sleep 0.01; done"
        for _ in range(PLACES):
            self._run("-n", "sh", "-c", hold)
        for _ in range(count):
            self._run("-n", "true")
        gate.touch()
        begin = time.time()
        # For the last one.
        self._run("-w")
        return count / (time.time() - begin)

    def latency(self, count: int) -> float:
        """Median of the seconds from the end of `tsp` to the running command."""
        found = []
        for number in range(count):
            mark = self._folder / f"mark{number}"
            self._run("-n", "sh", "-c", f"date +%s.%N > {mark}.part && mv {mark}.part {mark}")
            submitted = time.time()
            while not mark.exists():
                time.sleep(POLL_S)
            found.append(float(mark.read_text()) - submitted)
        return max(statistics.median(found), 1e-3)

    def close(self) -> None:
        self._run("-K")

    def _run(self, *words: str) -> None:
        subprocess.run(["tsp", *words], env=self._env, capture_output=True, check=True)


if __name__ == "__main__":
    main()
