"""Batches by a worker and by jobs: python -m tests.bench.bench_batch [items] [seconds] [short].

Everything is real: `gpucoord up`, HTTP, the loop, runners; 4 simulated GPUs. First `items` items of
so many seconds are answered by workers, then by one job each: elapsed time by the ideal one, which
is items × seconds ÷ GPUs. Then `short` items of 0.1 s with two workers.
"""

from __future__ import annotations

import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from tests.bench.bench_jobs import _token
from tests.processes.service import Service

GPUS = 4
WORKER = """
import json, sys, time
print(json.dumps({"ready": True}), flush=True)
for number, line in enumerate(sys.stdin, start=1):
    time.sleep(float(json.loads(line)["args"]["seconds"]))
    print(json.dumps({"output": number}), flush=True)
"""
PLAIN = "import sys, time; time.sleep(float(sys.argv[1]))"
SCHEMA = {"properties": {"file": {"type": "string"}, "seconds": {"type": "number"}}}


def main() -> None:
    given = [float(argument) for argument in sys.argv[1:]]
    items, seconds, short = (given + [125.0, 5.0, 1000.0][len(given) :])[:3]
    with tempfile.TemporaryDirectory(prefix="gpucoord-bench-") as folder:
        data = Path(folder) / "data"
        settings = "tests.bench.free_gpus_settings"
        with Service(data, settings, GPUCOORD_SIMULATED_GPUS=str(GPUS)) as service:
            headers = {"Authorization": f"Bearer {_token(data)}"}
            with httpx.Client(base_url=service.address, headers=headers, timeout=60) as client:
                register(client)
                for script in ("worker", "plain"):
                    run(client, script, GPUS, 0.1)
                    batch = run(client, script, int(items), seconds)
                    ratio = elapsed(batch) / (items * seconds / GPUS)
                    print(f"{script:8} {elapsed(batch):7.1f} s   {ratio:.3f} × ideal", flush=True)
                batch = run(client, "worker", int(short), 0.1, only=2)
                print(f"short    {short / elapsed(batch) / 2:7.2f} items/s of each worker")


def register(client: httpx.Client) -> None:
    for name, commands in {
        "worker": {"worker": ["{python}", "-c", WORKER]},
        "plain": {"argv": ["{python}", "-c", PLAIN, "{seconds}"]},
    }.items():
        body = {"name": name, "schema": SCHEMA, "item_argument": "file", **commands}
        answer = client.post("/api/scripts/", json=body)
        assert answer.status_code == 201, answer.text


def run(client: httpx.Client, script: str, items: int, seconds: float, only: int = 0) -> Any:
    """The batch when it has ended. only: so many GPUs."""
    body: dict[str, Any] = {
        "script": script,
        "script_args": {"seconds": seconds},
        "items": [f"item {number}" for number in range(items)],
        "gpu_mode": "shared",
        "exclusive": True,
        "gpus": GPUS // only if only else 1,
    }
    answer = client.post("/api/batches/", json=body)
    assert answer.status_code == 201, answer.text
    while True:
        batch = client.get(f"/api/batches/{answer.json()['id']}/").json()
        if batch["state"] != "running":
            assert batch["completed"] == items, batch
            check_once(client, batch)
            return batch
        time.sleep(0.5)


def check_once(client: httpx.Client, batch: Any) -> None:
    """No item was run twice: a job of its own has one try, and a worker counts what it runs."""
    numbers: dict[int, set[int]] = {}
    for offset in range(0, batch["total_items"], 1000):
        page = client.get(f"/api/batches/{batch['id']}/items/?limit=1000&offset={offset}").json()
        for item in page["items"]:
            if item["result"] is None:
                assert item["attempt"] == 1, item
            else:
                numbers.setdefault(item["job"], set()).add(item["result"])
    for job, counted in numbers.items():
        assert counted == set(range(1, len(counted) + 1)), (job, len(counted), max(counted))
    answered = sum(map(len, numbers.values()))
    assert answered in (0, batch["total_items"]), answered


def elapsed(batch: Any) -> float:
    """Seconds from the submission to the end."""
    begin, end = (datetime.fromisoformat(batch[name]) for name in ("created_at", "ended_at"))
    return (end - begin).total_seconds()


if __name__ == "__main__":
    main()
