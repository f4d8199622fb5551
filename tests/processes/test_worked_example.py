"""A batch that has the GPUs for itself: the worked example, 60 times as fast, with real processes.

125 items of 45 s on three GPUs, on each of which a model is loaded that boots in 120 s: unloading
takes 15 s, the items 42 rounds, and loading again 6 min. Prints how long each step took.
"""

from __future__ import annotations

import json
import os
import pwd
import sqlite3
import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.processes.model_stand import SERVER
from tests.processes.service import Service, kill_jobs, token, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.long]
FASTER, GPUS, ITEMS = 60, 3, 125
ITEM_S, BOOT_S, UNLOAD_S = 45 / FASTER, 120 / FASTER, 15 / FASTER
PREDICTED_S = {"unloading": UNLOAD_S, "working": 42 * ITEM_S, "reloading": GPUS * BOOT_S}
# At most, on a busy machine: a worker or a model server starts, and the service sees that it is
# ready. This time does not shrink.
START_S = 4.0
WORKER = f"""
import sys, time
print('{{"ready": true}}', flush=True)
for line in sys.stdin:
    time.sleep({ITEM_S})
    print('{{"output": 1}}', flush=True)
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    settings = "tests.bench.free_gpus_settings"
    with Service(tmp_path / "data", settings, GPUCOORD_SIMULATED_GPUS=str(GPUS)) as running:
        yield running
        kill_jobs(running.data)


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {token(service)}"}
    address = f"{service.address}api/"
    with httpx.Client(base_url=address, headers=headers, timeout=60) as client:
        yield client


def load_models(client: httpx.Client) -> None:
    server = [sys.executable, str(SERVER), "--model", "{model}", "--port", "{port}"]
    for number in range(GPUS):
        body = {
            "name": f"m{number}", "command": [*server, "--boot-s", str(BOOT_S)],
            "gpu_memory": "20GiB", "account": pwd.getpwuid(os.geteuid()).pw_name,
        }  # fmt: skip
        client.post("models/", json=body).raise_for_status()
        client.post(f"models/m{number}/boot/").raise_for_status()
    wait_until(lambda: loaded(client) == GPUS, 60, "all models are loaded")


def loaded(client: httpx.Client) -> int:
    models = client.get("models/").raise_for_status().json()["models"]
    return sum(each["state"] == "ready" for model in models for each in model["instances"])


def submit(client: httpx.Client) -> int:
    script = {
        "name": "work", "worker": ["{python}", "-c", WORKER], "item_argument": "file",
        "schema": {"properties": {"file": {"type": "string"}}},
    }  # fmt: skip
    client.post("scripts/", json=script).raise_for_status()
    items = [f"item {number}" for number in range(ITEMS)]
    body = {"script": "work", "items": items, "gpu_mode": "exclusive"}
    return int(client.post("batches/", json=body).raise_for_status().json()["id"])


def steps(service: Service, batch: int) -> dict[str, float]:
    """When each step of the exclusive mode began, in seconds since 1970."""
    with sqlite3.connect(f"file:{service.database}?mode=ro", uri=True, timeout=60) as reader:
        query = "SELECT log FROM scheduler_exclusiverun WHERE batch_id = ?"
        ((log,),) = reader.execute(query, [batch]).fetchall()
    entries: list[list[Any]] = json.loads(log)
    return {name: datetime.fromisoformat(at).timestamp() for name, at in entries}


def test_each_step_takes_as_long_as_predicted(service: Service, client: httpx.Client) -> None:
    load_models(client)
    batch = submit(client)

    begun = wait_until(
        lambda: (log := steps(service, batch)) and "ended" in log and log, 110, "the batch ends"
    )

    took = {name: begun[after] - begun[name] for name, after in pairwise(begun)}
    print({name: round(seconds, 2) for name, seconds in took.items()})  # noqa: T201
    for name, predicted_s in PREDICTED_S.items():
        starts = GPUS if name == "reloading" else 1
        # Unloading a model that does nothing takes less.
        least_s = 0.0 if name == "unloading" else 0.98 * predicted_s
        assert least_s <= took[name] <= 1.1 * predicted_s + starts * START_S
    assert client.get(f"batches/{batch}/").json()["completed"] == ITEMS
    assert loaded(client) == GPUS
