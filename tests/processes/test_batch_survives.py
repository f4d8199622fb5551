"""A batch with workers, while parts of the service and of its workers are killed at random."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from scheduler.runner import files, process_tree
from scheduler.runner.spec import Started
from tests.processes.service import Service, kill_jobs, lives, token, wait_until
from tests.scheduler.submission.batches import worker_program

pytestmark = pytest.mark.processes
OF_THE_SERVICE = ("web", "scheduler")
OF_A_WORKER = ("runner", "runner and guardian", "worker", "program")
SCHEMA = {"properties": {"file": {"type": "string"}}, "required": ["file"]}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "data") as running:
        yield running
        kill_jobs(running.data)


def submitted(service: Service, items: Sequence[str], marks: Path) -> int:
    program = [sys.executable, worker_program.__file__, str(marks)]
    script = {
        "name": "work", "worker": program, "schema": SCHEMA, "gpu": "optional",
        "item_argument": "file",
    }  # fmt: skip
    batch = {"script": "work", "items": list(items), "gpus": 0, "retries": 20}
    headers = {"Authorization": f"Bearer {token(service)}"}
    with httpx.Client(base_url=service.address, headers=headers, timeout=60) as client:
        for path, body in (("/api/scripts/", script), ("/api/batches/", batch)):
            answer = client.post(path, json=body)
            assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


def rows(service: Service, query: str, *values: object) -> list[Any]:
    with sqlite3.connect(f"file:{service.database}?mode=ro", uri=True, timeout=60) as reader:
        return reader.execute(query, values).fetchall()


def state(service: Service, batch: int) -> tuple[str, int]:
    """The state of the batch, and the number of completed items."""
    (row,) = rows(service, "SELECT state, completed FROM scheduler_batch WHERE id = ?", batch)
    return row


def storm(service: Service, batch: int, kills: int, seed: int) -> Counter[str]:
    """Kill parts at random while the batch runs; returns how often each part was killed."""
    chance, killed = random.Random(seed), Counter[str]()
    while state(service, batch)[0] == "running":
        least = state(service, batch)[1] + 5

        def has_moved(least: int = least) -> bool:
            now, completed = state(service, batch)
            return completed >= least or now != "running"

        wait_until(has_moved, 60, f"further items, after {dict(killed)}")
        if killed.total() < kills:
            part = chance.choice(OF_THE_SERVICE + OF_A_WORKER)
            killed[part] += kill(service, part, chance)
    return killed


def kill(service: Service, part: str, chance: random.Random) -> bool:
    """False: there was nothing to kill."""
    if part == "web":
        pids = [service.child("web")]
    elif part == "scheduler":
        query = "SELECT pid FROM monitor_lease WHERE loop = 'scheduler' AND pid NOTNULL"
        pids = [pid for (pid,) in rows(service, query)]
    else:
        workers = [each for each in started(service.data) if lives(each.pid)]
        pids = pids_of(chance.choice(workers), part) if workers else []
    alive = [pid for pid in pids if lives(pid)]
    for pid in alive:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(alive)


def started(data: Path) -> list[Started]:
    """The attempts that have no result yet."""
    paths = sorted(data.glob("jobs/*/*/started.json"))
    bodies = (files.read_json(path) for path in paths if not (path.parent / files.RESULT).exists())
    return [Started.checked(body) for body in bodies if body is not None]


def pids_of(worker: Started, part: str) -> list[int]:
    if part == "program":
        return [child.pid for child in process_tree.descendants(worker.pid)]
    if part == "worker":
        return [worker.pid]
    # The guardian first, so that it does not take over.
    guardian = [worker.guardian_pid] if part == "runner and guardian" else []
    return [*guardian, worker.runner_pid]


def endured(
    service: Service, marks: Path, items: Sequence[str], kills: int, seed: int
) -> tuple[int, Counter[str]]:
    """The number of the batch, and how often each part was killed until it had ended."""
    batch = submitted(service, items, marks)
    killed = storm(service, batch, kills, seed)
    print(f"seed {seed}: {dict(killed)}")  # noqa: T201
    return batch, killed


def results(service: Service, batch: int) -> dict[str, str]:
    """By item, the item that its result is of; all have completed."""
    query = "SELECT input, status, result FROM scheduler_batchitem WHERE batch_id = ?"
    read = rows(service, query, batch)
    assert {status for _, status, _ in read} == {"complete"}
    return {text: json.loads(result)["item"] for text, _, result in read}


def repeats(service: Service, batch: int, marks: Path) -> tuple[int, int]:
    """How many items have begun again, and how many further tries of items were made."""
    begun = Counter(line for line in marks.read_text().splitlines() if line != "loaded")
    query = "SELECT count(*), sum(attempt - 1) FROM scheduler_batchitem WHERE batch_id = ?"
    ((items, tries),) = rows(service, query, batch)
    assert len(begun) == items
    return begun.total() - items, tries


def test_each_item_has_one_result_after_kills_of_all_parts(
    service: Service, tmp_path: Path
) -> None:
    items = [f"0.3{number:03}" for number in range(60)]
    batch, killed = endured(service, tmp_path / "marks", items, kills=6, seed=4)

    assert killed.total() >= 3
    assert state(service, batch) == ("complete", 60)
    assert results(service, batch) == {item: item for item in items}
    repeated, tries = repeats(service, batch, tmp_path / "marks")
    # An item that was killed in its middle begins again. A second kill of a runner meets the
    # guardian that has replaced it.
    assert repeated <= min(tries, sum(killed[part] for part in OF_A_WORKER))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(8))
def test_each_item_has_one_result_after_a_storm_of_kills(
    service: Service, tmp_path: Path, seed: int
) -> None:
    items = [f"0.1{number:03}" for number in range(600)]
    batch, killed = endured(service, tmp_path / "marks", items, kills=40, seed=seed)

    assert killed.total() >= 20
    assert state(service, batch) == ("complete", 600)
    assert results(service, batch) == {item: item for item in items}
    repeated, tries = repeats(service, batch, tmp_path / "marks")
    assert repeated <= min(tries, sum(killed[part] for part in OF_A_WORKER))
