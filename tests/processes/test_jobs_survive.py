from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from scheduler.runner import process_tree
from tests.pace import LONGEST_S
from tests.processes.service import ROOT, Service, children, lives, token, wait_until
from tests.scheduler.submission.batches import worker_program

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "data")
    service.start()
    yield service
    _kill_gpucoord(service)


def _submit(service: Service, command: str) -> int:
    return int(_run(service, "submit_job", command))


def _waits_for(gate: Path) -> str:
    return f"until [ -e {gate} ]; do sleep 0.05; done"


def _run(service: Service, module: str, argument: str) -> str:
    """A process that does one thing beside the service and is killed."""
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "GPUCOORD_DATA": str(service.data),
        "DJANGO_SETTINGS_MODULE": "gpucoord_site.settings",
    }
    line = [sys.executable, "-m", f"tests.processes.{module}", argument]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout


def _row(service: Service, job: int) -> dict[str, Any]:
    with closing(sqlite3.connect(f"file:{service.database}?mode=ro", uri=True)) as rows:
        rows.row_factory = sqlite3.Row
        return dict(rows.execute("SELECT * FROM scheduler_job WHERE id=?", [job]).fetchone())


def _attempts(service: Service, job: int) -> int:
    return len(list((service.data / "jobs" / str(job)).glob("[0-9]*/")))


def _log(service: Service, job: int) -> str:
    path = service.data / "jobs" / str(job) / "1" / "output.log"
    return path.read_text() if path.exists() else ""


def _wait_for_end(service: Service, job: int) -> dict[str, Any]:
    def ended() -> dict[str, Any] | None:
        row = _row(service, job)
        return row if row["state"] == "finished" else None

    return wait_until(ended, 15, f"the end of job {job}")


def _is_runner(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() in (
            "gpucoord-runner",
            process_tree.GUARDIAN,
        )
    return False


def _kill_gpucoord(service: Service) -> None:
    """SIGKILL to every process of gpucoord but the runners, the supervisor first."""
    pids = [service.process.pid]
    for pid in pids:
        pids += [child for child in children(pid) if not _is_runner(child)]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    service.process.wait()
    wait_until(lambda: not any(map(lives, pids)), 5, "the end of gpucoord")


def test_a_job_ends_while_all_of_gpucoord_is_dead(service: Service) -> None:
    gate = service.data / "gate"
    job = _submit(service, f"echo began; {_waits_for(gate)}; echo ended; exit 7")
    wait_until(lambda: "began" in _log(service, job), 10, "its start")
    _kill_gpucoord(service)
    assert _row(service, job)["state"] in ("starting", "running")
    gate.touch()
    wait_until((service.data / "jobs" / str(job) / "1" / "result.json").exists, 10, "its result")

    service.start()
    row = _wait_for_end(service, job)
    assert (row["outcome"], row["exit_code"]) == ("failed", 7)
    assert _log(service, job) == "began\nended\n"
    assert _attempts(service, job) == 1


def test_a_running_job_is_followed_by_the_next_gpucoord(service: Service) -> None:
    gate = service.data / "gate"
    job = _submit(service, f"echo began; {_waits_for(gate)}; echo ended; exit 7")
    wait_until(lambda: "began" in _log(service, job), 10, "its start")
    _kill_gpucoord(service)

    service.start()
    wait_until(lambda: _row(service, job)["state"] == "running", 10, "the adoption")
    gate.touch()
    assert (_wait_for_end(service, job)["exit_code"], _attempts(service, job)) == (7, 1)


def test_jobs_submitted_while_everything_dies_are_all_there_and_run_once(
    service: Service,
) -> None:
    """Each appends a line: one line a job, whatever was killed when."""
    marks = service.data / "marks"
    jobs = [_submit(service, f"echo $GPUCOORD_JOB_ID >> {marks}; sleep 0.1") for _ in range(3)]
    _kill_gpucoord(service)
    jobs += [_submit(service, f"echo $GPUCOORD_JOB_ID >> {marks}") for _ in range(2)]

    service.start()
    assert {_wait_for_end(service, job)["outcome"] for job in jobs} == {"succeeded"}
    assert sorted(map(int, marks.read_text().split())) == jobs


def test_a_stop_of_the_service_leaves_jobs_running(service: Service) -> None:
    gate = service.data / "gate"
    job = _submit(service, f"echo began; {_waits_for(gate)}; exit 7")
    wait_until(lambda: "began" in _log(service, job), 10, "its start")
    service.process.send_signal(signal.SIGTERM)

    assert service.process.wait(LONGEST_S) == 0
    gate.touch()
    service.start()
    assert _wait_for_end(service, job)["exit_code"] == 7


def test_a_job_that_is_asked_to_yield_while_everything_dies_goes_on_later(
    service: Service,
) -> None:
    saves = (
        "if [ -e $GPUCOORD_CHECKPOINT_DIR/saved ]; then echo resumed; exit 0; fi; echo began; "
        "while [ ! -e $GPUCOORD_YIELD_FILE ]; do sleep 0.05; done; "
        "touch $GPUCOORD_CHECKPOINT_DIR/saved; exit 85"
    )
    job = _submit(service, saves)
    wait_until(lambda: "began" in _log(service, job), 10, "its start")
    _run(service, "ask_to_yield", str(job))
    _kill_gpucoord(service)

    service.start()
    row = _wait_for_end(service, job)
    assert (row["outcome"], row["requeues"]) == ("succeeded", 1)
    assert _attempts(service, job) == 2


def _exclusive_step(service: Service) -> str:
    with closing(sqlite3.connect(f"file:{service.database}?mode=ro", uri=True)) as rows:
        return str(rows.execute("SELECT step FROM scheduler_exclusiverun").fetchone()[0])


def _reaches(service: Service, *steps: str) -> None:
    wait_until(lambda: _exclusive_step(service) in steps, 30, f"the step {steps[0]}")


def test_a_batch_in_exclusive_mode_goes_on_after_each_death_of_gpucoord(service: Service) -> None:
    """Each item appends a line: one line an item, whatever was killed when."""
    marks = service.data / "marks"
    items = [f"item-{number}" for number in range(4)]
    body = {
        "command": f"echo $GPUCOORD_ITEM >> {marks}; sleep 0.5",
        "items": items,
        "gpu_mode": "exclusive",
    }
    headers = {"authorization": f"Bearer {token(service)}"}
    answer = httpx.post(
        f"{service.address}api/batches/", json=body, headers=headers, timeout=LONGEST_S
    )
    assert answer.status_code == 201, answer.text

    _reaches(service, "announced", "draining")
    _kill_gpucoord(service)
    service.start()
    _reaches(service, "working", "reloading", "ended")
    _kill_gpucoord(service)
    service.start()
    _reaches(service, "ended")

    batch = httpx.get(
        f"{service.address}api/batches/{answer.json()['id']}/", headers=headers, timeout=LONGEST_S
    ).json()
    assert (batch["state"], batch["completed"]) == ("complete", len(items))
    assert sorted(marks.read_text().split()) == items


def test_workers_of_a_batch_go_on_while_gpucoord_is_dead(service: Service) -> None:
    """They outlive all of it, so each item is answered once, by the workers that were there."""
    marks = service.data / "marks"
    headers = {"authorization": f"Bearer {token(service)}"}
    with httpx.Client(base_url=service.address, headers=headers, timeout=LONGEST_S) as client:
        program = [sys.executable, worker_program.__file__, str(marks)]
        script = {"name": "work", "worker": program, "gpu": "no"}
        client.post("api/scripts/", json=script).raise_for_status()
        body = {"script": "work", "items": ["0.5"] * 24}
        batch = client.post("api/batches/", json=body).json()["id"]
    wait_until(lambda: marks.exists() and "0 0.5" in marks.read_text(), 30, "the first item")

    _kill_gpucoord(service)
    service.start()

    def ended() -> Any:
        path = f"{service.address}api/batches/{batch}/"
        row = httpx.get(path, headers=headers, timeout=LONGEST_S).json()
        return row if row["state"] != "running" else None

    row = wait_until(ended, 60, "the end of the batch")
    assert (row["state"], row["completed"]) == ("complete", 24)
    lines = Counter(line for line in marks.read_text().splitlines() if line != "loaded")
    assert lines == {f"{index} 0.5": 1 for index in range(24)}
