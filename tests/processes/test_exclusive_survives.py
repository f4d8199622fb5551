"""Kills the loops with SIGKILL at each step of the exclusive mode of a batch, in a real service."""

from __future__ import annotations

import json
import os
import pwd
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.pace import Stopwatch
from tests.processes.service import Service, wait_until
from tests.processes.test_loops_survive import whole_group
from tests.processes.test_up_serves_models import COMMAND, Client

pytestmark = pytest.mark.processes
NEVER = {"warn_pct": 100, "clean_pct": 100, "block_pct": 100}
POLICY = {"disk": NEVER}
ITEMS = [f"item {number}" for number in range(6)]
STEPS = ["announced", "draining", "unloading", "working", "reloading", "ended"]


def kill_loops(service: Service) -> None:
    for pid in whole_group(service):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def followed(client: Client, batch: int) -> tuple[dict[str, Any], list[str]]:
    """Kill the loops once at each step that is seen; the ended batch, and those steps."""
    seen: list[str] = []
    watch = Stopwatch()
    while True:
        body: dict[str, Any] = client.get(f"batches/{batch}/")
        step = body["exclusive"]["step"]
        if step == "ended" and body["state"] != "running":
            return body, seen
        if step not in ("waiting", "ended", *seen):
            seen.append(step)
            kill_loops(client.service)
        assert not watch.has_run(90), body


def test_a_batch_goes_on_after_kills_at_each_step(tmp_path: Path) -> None:
    done = tmp_path / "done"
    account = pwd.getpwuid(os.geteuid()).pw_name
    settings = {"GPUCOORD_POLICY": json.dumps(POLICY), "GPUCOORD_SIMULATED_GPUS": "8"}
    with Service(tmp_path / "data", **settings) as service:
        wait_until(lambda: service.healthz().status_code == 200, 15, "a healthy service")
        with Client(service) as client:
            model = {"gpu_memory": "1GiB", "gpus": 1, "min_instances": 1, "account": account}
            # Nobody else uses it, so the batch takes it from the model.
            model |= {"on_gpus": ["7"]}
            client.post("models/", name="m", command=COMMAND, **model)

            def ready() -> list[Any]:
                instances = client.get("models/m/")["instances"]
                return [one for one in instances if one["state"] == "ready"]

            wait_until(ready, 20, "a model")
            command = f'sleep 0.3; echo "$GPUCOORD_ITEM" >> {done}'
            batch = client.post(
                "batches/", command=command, items=ITEMS, gpu_mode="exclusive", gpus=1, on_gpu=7
            )["id"]

            body, seen = followed(client, batch)
            wait_until(ready, 20, "the model again")
            items = client.get(f"batches/{batch}/items/")["items"]
            client.remove_all()

    assert {"announced", "draining", "working", "reloading"} <= set(seen)
    assert [entry["step"] for entry in body["exclusive"]["steps"]] == STEPS
    assert (body["state"], body["completed"]) == ("complete", len(ITEMS))
    assert sorted(done.read_text().splitlines()) == ITEMS
    assert [item["attempt"] for item in items] == [1] * len(ITEMS)
