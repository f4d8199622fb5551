"""Faults of processes, disk, database, clock and clients while short jobs run all the time.

After each fault every job has run exactly once with its own exit code, and the service is healthy
again without help. What an operator needs to know is on the page of the service or in its log.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from scheduler.runner import files
from tests.hostile.load import Ended, Load
from tests.pace import LONGEST_S
from tests.processes.service import (
    NO_LIMITS_OF_THE_MACHINE,
    WORKERS,
    Service,
    command_line,
    kill_jobs,
    token,
    wait_until,
)

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
LOAD_FIRST_S, LOAD_AFTER_S = 3.0, 3.0
# Jobs end within this time after the fault, also on a machine that is twice as slow.
DRAIN_S, HEALTHY_S = 120.0, 120.0
Fault = Callable[[Service, Load], None]


def service_in(data: Path, **env: str) -> Service:
    return Service(data, GPUCOORD_CPU_JOBS="30", **env)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with served(service_in(tmp_path / "data")) as running:
        yield running


@contextmanager
def served(service: Service) -> Iterator[Service]:
    service.start()
    try:
        yield service
    finally:
        with suppress(ProcessLookupError):
            service.stop()
        kill_jobs(service.data)


@contextmanager
def logged_in(service: Service) -> Iterator[httpx.Client]:
    """The administrator's browser."""
    with httpx.Client(base_url=service.address, timeout=LONGEST_S) as http:
        http.get("login/")
        fields = {"username": "admin", "password": "correct horse"}
        key = {"csrfmiddlewaretoken": http.cookies["gpucoord_csrf"]}
        assert http.post("login/", data=fields | key).status_code == 302
        yield http


def status_page(service: Service) -> str:
    """The text of /status/."""
    with logged_in(service) as http:
        return re.sub(r"<[^>]*>|\s+", " ", http.get("status/").text)


def is_healthy(service: Service) -> bool:
    with suppress(httpx.HTTPError):
        return service.healthz().status_code == 200
    return False


def run_with_fault(service: Service, fault: Fault, tally: Path) -> Ended:
    """Jobs before, during and after the fault, and how they ended."""
    with Load(lambda: service.address, token(service), tally) as load:
        time.sleep(LOAD_FIRST_S)
        fault(service, load)
        wait_until(lambda: is_healthy(service), HEALTHY_S, "a healthy service")
        before = load.submitted
        wait_until(lambda: load.submitted > before, HEALTHY_S, "jobs are accepted again")
        time.sleep(LOAD_AFTER_S)
        ended = load.finish(DRAIN_S)
        assert len(ended.jobs) == load.submitted > 10
    return ended


# Processes


def runners(service: Service) -> list[int]:
    return [pid for pid, _ in _of_jobs(service)]


def guardians(service: Service) -> list[int]:
    return [pid for _, pid in _of_jobs(service) if pid]


def _of_jobs(service: Service) -> list[tuple[int, int]]:
    """Runner and guardian of every third job that runs."""
    found = []
    for path in sorted(service.data.glob("jobs/*/*/started.json"))[::3]:
        body = None if (path.parent / files.RESULT).exists() else files.read_json(path)
        if body:
            found.append((int(body["runner_pid"]), int(body["guardian_pid"])))
    return found


def leaseholders(service: Service) -> list[int]:
    with closing(sqlite3.connect(f"file:{service.database}?mode=ro", uri=True, timeout=60)) as db:
        return [pid for (pid,) in db.execute("SELECT pid FROM monitor_lease WHERE pid NOTNULL")]


def pool(service: Service) -> list[int]:
    family = service.family()
    return [pid for pid in family if "scheduler.runner" in command_line(pid)][:1]


VICTIMS: dict[str, Callable[[Service], list[int]]] = {
    "web": lambda s: [s.child("web")],
    "tasks": lambda s: [s.child("tasks")],
    "workers": lambda s: s.members()[:WORKERS],
    "loops": leaseholders,
    "pool": pool,
    "runners": runners,
    "guardians": guardians,
}
IN_CI = {"runners"}


def send(pids: list[int], number: int) -> int:
    """The number of processes that got the signal."""
    reached = 0
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            reached += 1
    return reached


def kinds() -> list[object]:
    return [pytest.param(k, marks=[] if k in IN_CI else pytest.mark.long) for k in VICTIMS]


@pytest.mark.parametrize("kind", kinds())
def test_killed_processes_lose_no_job(service: Service, tmp_path: Path, kind: str) -> None:
    def kill(service: Service, _: Load) -> None:
        for _ in range(3):
            # On a busy machine, none of the jobs may be running just now.
            wait_until(lambda: send(VICTIMS[kind](service), signal.SIGKILL), 30, f"{kind} to kill")
            time.sleep(2)

    ended = run_with_fault(service, kill, tmp_path / "tally")

    assert ended.faults() == []
    if kind in {"web", "tasks"}:
        assert "PROCESS_ENDED" in service.text() or "was killed" in service.text()


@pytest.mark.long
@pytest.mark.parametrize("kind", list(VICTIMS))
def test_frozen_processes_lose_no_job(service: Service, tmp_path: Path, kind: str) -> None:
    frozen: list[int] = []

    def freeze(service: Service, _: Load) -> None:
        frozen.extend(VICTIMS[kind](service))
        assert send(frozen, signal.SIGSTOP) > 0
        time.sleep(15)
        # A frozen runner or guardian belongs to a job, and nothing replaces it.
        if kind in {"runners", "guardians", "pool"}:
            send(frozen, signal.SIGCONT)

    try:
        ended = run_with_fault(service, freeze, tmp_path / "tally")
    finally:
        send(frozen, signal.SIGCONT)

    assert ended.faults() == []


@pytest.mark.long
def test_a_killed_supervisor_loses_no_job(service: Service, tmp_path: Path) -> None:
    def kill(service: Service, _: Load) -> None:
        service.process.kill()
        service.process.wait()
        time.sleep(3)
        service.start()

    assert run_with_fault(service, kill, tmp_path / "tally").faults() == []


# Disk and files


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "data"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_loses_no_job_and_is_told(small_disk: Path, tmp_path: Path) -> None:
    policy = json.loads(NO_LIMITS_OF_THE_MACHINE)
    policy["constraints"] |= {"data_free_gib": 0}
    pages: list[str] = []

    def fill(service: Service, _: Load) -> None:
        filler = service.data / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        time.sleep(8)
        with suppress(httpx.HTTPError, AssertionError):
            pages.append(status_page(service))
        filler.unlink()

    with served(service_in(small_disk, GPUCOORD_POLICY=json.dumps(policy))) as service:
        assert run_with_fault(service, fill, tmp_path / "tally").faults() == []
        assert "disk" in (pages[0] if pages else service.text()).lower()


@pytest.mark.long
def test_a_deleted_folder_of_an_attempt_costs_no_other_job(
    service: Service, tmp_path: Path
) -> None:
    """The result of a job without its folder is not known; it is not guessed."""
    gate = tmp_path / "gate"
    secret = token(service)
    with httpx.Client(
        base_url=service.address, headers={"Authorization": f"Bearer {secret}"}, timeout=60
    ) as http:
        command = f"until [ -e {gate} ]; do sleep 0.05; done; exit 5"
        victim = http.post("api/jobs/", json={"command": command, "gpus": 0}).json()["id"]

        def job() -> dict[str, object]:
            body: dict[str, object] = http.get(f"api/jobs/{victim}/").json()
            return body

        wait_until(lambda: job()["state"] == "running", 30, "the job runs")

        def delete(service: Service, _: Load) -> None:
            shutil.rmtree(service.data / "jobs" / str(victim))
            time.sleep(1)
            gate.touch()

        others = run_with_fault(service, delete, tmp_path / "tally")
        ended = wait_until(lambda: job() if job()["state"] == "finished" else None, 60, "its end")

    assert others.faults() == []
    assert (ended["outcome"], ended["exit_code"]) in {("lost", None), ("failed", 5)}
    assert len(ended["attempts"]) == 1  # type: ignore[arg-type]


def held_jobs(service: Service) -> list[int]:
    with closing(sqlite3.connect(service.database, timeout=60)) as db:
        held = db.execute("SELECT id FROM scheduler_job WHERE held LIKE '%since the backup%'")
        return [pk for (pk,) in held]


@pytest.mark.long
def test_an_older_backup_that_is_restored_while_jobs_run_doubles_none(
    service: Service, tmp_path: Path
) -> None:
    """Jobs that waited in the backup and have run since are held, so that none runs twice.

    Jobs after the backup are unknown afterwards; no new job gets their results.
    """
    archive = tmp_path / "backup.tar.gz"

    def gpucoord(*argv: str) -> None:
        argv = (sys.executable, "-m", "gpucoord_site", *argv)
        subprocess.run(argv, env=service._env, cwd=service.root, check=True)

    with Load(lambda: service.address, token(service), tmp_path / "tally") as load:
        time.sleep(LOAD_FIRST_S)
        gpucoord("backup", str(archive))
        time.sleep(LOAD_FIRST_S)
        load.pause()
        service.stop()
        gpucoord("restore", "--replace", str(archive))
        with closing(sqlite3.connect(service.database)) as db:
            highest = int(db.execute("SELECT max(id) FROM scheduler_job").fetchone()[0])
        service.start()
        load.forget_after(highest)
        load.forget(held_jobs(service))
        load.resume()
        wait_until(lambda: is_healthy(service), HEALTHY_S, "a healthy service")
        time.sleep(LOAD_AFTER_S)
        ended = load.finish(DRAIN_S)

    assert ended.faults() == []
    assert max(ended.runs.values()) == 1


# Database, descriptors, clients, clock


def jobs_in(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT count(*) FROM scheduler_job").fetchone()[0])


@pytest.mark.parametrize("seconds", [8, pytest.param(60, marks=pytest.mark.long)])
def test_a_locked_database_loses_no_job(service: Service, tmp_path: Path, seconds: int) -> None:
    def lock(service: Service, _: Load) -> None:
        with closing(sqlite3.connect(service.database, timeout=60, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            before = jobs_in(db)
            time.sleep(seconds)
            # No other process wrote: the lock held.
            assert jobs_in(db) == before
            db.execute("ROLLBACK")

    assert run_with_fault(service, lock, tmp_path / "tally").faults() == []


@pytest.mark.long
@pytest.mark.parametrize("kind", ["web", "workers", "pool"])
def test_processes_without_free_descriptors_lose_no_job(
    service: Service, tmp_path: Path, kind: str
) -> None:
    def starve(service: Service, _: Load) -> None:
        limits = {}
        for pid in VICTIMS[kind](service):
            with suppress(psutil.Error, OSError):
                limits[pid] = resource.prlimit(pid, resource.RLIMIT_NOFILE)
                used = psutil.Process(pid).num_fds()
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, limits[pid][1]))
        assert limits
        time.sleep(10)
        for pid, limit in limits.items():
            with suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)

    assert run_with_fault(service, starve, tmp_path / "tally").faults() == []


def open_socket(address: str, cookie: str) -> socket.socket:
    """A WebSocket of the live pages; nothing is read from it."""
    url = urlsplit(address)
    opened = socket.create_connection((url.hostname, url.port), timeout=30)
    opened.sendall(
        f"GET /ws/live/ HTTP/1.1\r\nHost: {url.netloc}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nOrigin: {url.scheme}://{url.netloc}\r\n"
        f"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nCookie: {cookie}\r\n\r\n".encode()
    )
    return opened


@pytest.mark.long
@pytest.mark.parametrize("count", [200, 1000])
def test_many_live_sockets_lose_no_job(service: Service, tmp_path: Path, count: int) -> None:
    def crowd(service: Service, _: Load) -> None:
        with logged_in(service) as http, ExitStack() as stack:
            cookie = f"gpucoord_session={http.cookies['gpucoord_session']}"
            opened = 0
            for _ in range(count):
                with suppress(OSError):
                    stack.enter_context(open_socket(service.address, cookie))
                    opened += 1
            assert opened > count / 2
            time.sleep(5)
            wait_until(lambda: is_healthy(service), LONGEST_S, "an answer beside the sockets")

    assert run_with_fault(service, crowd, tmp_path / "tally").faults() == []


@pytest.fixture
def clock(tmp_path: Path) -> tuple[dict[str, str], Callable[[int], None]]:
    """The environment of processes whose wall clock jumps, and what lets it jump (seconds)."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    library, shift = tmp_path / "clock_shift.so", tmp_path / "shift"
    source = Path(__file__).with_name("clock_shift.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    shift.write_bytes(bytes(8))

    def jump(seconds: int) -> None:
        with shift.open("r+b") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))

    return {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(shift)}, jump


def ahead_s(service: Service) -> float:
    """How far the clock that dated the newest job is ahead of this one."""
    with closing(sqlite3.connect(service.database, timeout=60)) as db:
        (text,) = db.execute(
            "SELECT submitted_at FROM scheduler_job ORDER BY id DESC LIMIT 1"
        ).fetchone()
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds()


@pytest.mark.long
@pytest.mark.parametrize("hours", [5, -5])
def test_a_jump_of_the_clock_loses_no_job(
    tmp_path: Path, clock: tuple[dict[str, str], Callable[[int], None]], hours: int
) -> None:
    env, jump = clock

    def fault(service: Service, _: Load) -> None:
        jump(hours * 3600)
        time.sleep(8)

    with served(service_in(tmp_path / "data", **env)) as service:
        assert run_with_fault(service, fault, tmp_path / "tally").faults() == []
        # Within the time of the test.
        assert abs(ahead_s(service) - hours * 3600) < 900
