"""`gpucoord up` as people run it: how fast it is there, how it ends, what it says when it can't."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.pace import LONGEST_S, Stopwatch
from tests.processes.service import ROOT, Service, children, lives, wait_until

pytestmark = pytest.mark.processes
FAKE = "tests.processes.fake_settings"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "data", FAKE) as running:
        yield running


def try_up(data: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `gpucoord up` where it should fail at once."""
    environment = {
        **{k: v for k, v in os.environ.items() if k != "DATABASE_URL"},
        "GPUCOORD_DATA": str(data),
        "GPUCOORD_PROBE": "simulated",
        "DJANGO_SETTINGS_MODULE": "gpucoord_site.settings",
        "PYTHONPATH": str(ROOT),
        **env,
    }
    command = [sys.executable, "-m", "gpucoord_site", "up", "--port", "0", *options]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )


def all_loops_tick(service: Service) -> bool:
    response = service.healthz()
    return response.status_code == 200 and response.json()["status"] == "ok"


def test_every_loop_ticks_within_seconds_of_the_command(service: Service) -> None:
    wait_until(lambda: all_loops_tick(service), 10, "all loops tick")
    assert service.since_start.seconds < 8
    service.stop()

    service.start()

    # It should be faster still on a database that is there.
    wait_until(lambda: all_loops_tick(service), 10, "all loops tick")
    assert service.since_start.seconds < 5


def test_a_signal_stops_everything_within_3_seconds(service: Service) -> None:
    wait_until(lambda: all_loops_tick(service), 10, "all loops tick")

    code, took_s = service.stop(signal.SIGTERM)

    assert code == 0
    assert took_s <= 3
    # It should also have given up the leases, and left nothing that says it runs.
    with sqlite3.connect(service.database) as reader:
        assert not reader.execute("SELECT * FROM monitor_lease WHERE pid NOTNULL").fetchall()
    assert not (service.data / "run" / "service.json").exists()


def test_open_connections_do_not_keep_it_from_stopping(service: Service) -> None:
    address = httpx.URL(service.address)
    silent = socket.create_connection((address.host, address.port or 0))
    half = socket.create_connection((address.host, address.port or 0))
    half.sendall(b"GET / HTTP/1.1\r\n")
    wait_until(lambda: all_loops_tick(service), 10, "all loops tick")

    code, took_s = service.stop()

    silent.close()
    half.close()
    assert code == 0
    assert took_s <= 3
    assert "Traceback" not in service.text()


def test_a_locked_database_does_not_keep_it_from_stopping(service: Service) -> None:
    wait_until(lambda: all_loops_tick(service), 10, "all loops tick")
    writer = sqlite3.connect(service.database, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    time.sleep(1.5)

    code, took_s = service.stop()

    writer.execute("ROLLBACK")
    writer.close()
    assert code == 0
    assert took_s <= 3.5


def test_ctrl_c_stops_it_too(service: Service) -> None:
    code, took_s = service.stop(signal.SIGINT)

    assert code == 0
    assert took_s <= 3


def test_a_closed_terminal_does_not_stop_it_under_nohup(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        service = Service(tmp_path / "data", FAKE).start()
    finally:
        signal.signal(signal.SIGHUP, before)

    service.process.send_signal(signal.SIGHUP)

    time.sleep(1)
    assert service.process.poll() is None
    assert service.stop()[0] == 0


def test_a_second_ctrl_c_does_not_wait(service: Service) -> None:
    stuck = service.child("web")
    os.kill(stuck, signal.SIGSTOP)
    service.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    watch = Stopwatch()

    service.process.send_signal(signal.SIGINT)

    service.process.wait(LONGEST_S)
    # Left alone, the stuck process would have 1.7 s more.
    assert watch.seconds < 1
    wait_until(lambda: not lives(stuck), 5, "the stuck process is killed")


def test_what_hangs_is_killed_when_it_stops(service: Service) -> None:
    for name in ("web", "tasks"):
        os.kill(service.child(name), signal.SIGSTOP)

    code, took_s = service.stop()

    assert code == 0
    # Two seconds after the signal.
    assert took_s <= 4


def test_a_supervisor_that_is_killed_leaves_nothing_that_matters(service: Service) -> None:
    wait_until(lambda: all_loops_tick(service), 10, "all loops tick")
    before = service.family()

    service.process.kill()
    service.process.wait(LONGEST_S)
    service.start()

    wait_until(lambda: not any(map(lives, before)), 5, "the old processes are gone")
    wait_until(lambda: all_loops_tick(service), 10, "all loops tick")


def test_a_killed_supervisor_and_cluster_are_cleaned_up_by_the_next(service: Service) -> None:
    wait_until(lambda: all_loops_tick(service), 10, "all loops tick")
    before = service.family()
    for pid in (service.process.pid, service.child("tasks")):
        os.kill(pid, signal.SIGKILL)
    service.process.wait(LONGEST_S)

    service.start()

    wait_until(lambda: not any(map(lives, before)), 5, "the old processes are gone")


def test_the_port_stays_open_while_the_web_process_starts_again(service: Service) -> None:
    os.kill(service.child("web"), signal.SIGKILL)

    response = httpx.get(f"{service.address}login/", timeout=LONGEST_S)

    assert response.status_code == 200


def test_an_orphan_in_a_session_of_its_own_lives_on_and_is_reaped(service: Service) -> None:
    """As a job's runner does, whose worker is killed or whose service stops."""
    script = "import os, time; os.setsid(); os.fork() and os._exit(0); time.sleep(4)"
    # A worker of the cluster can't be asked to start one: move a process under the supervisor.
    inside = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {script!r}])"
    task = f"exec({inside!r})"
    queue = (
        "import django; django.setup();"
        "from django_q.tasks import async_task;"
        f"async_task('builtins.exec', {task!r}, q_options={{'save': False}})"
    )
    environment = {
        **os.environ,
        "GPUCOORD_DATA": str(service.data),
        "DJANGO_SETTINGS_MODULE": FAKE,
        "PYTHONPATH": str(ROOT),
    }
    subprocess.run([sys.executable, "-c", queue], env=environment, check=True, timeout=LONGEST_S)

    def orphan() -> int | None:
        ours = {service.child("web"), service.child("tasks")}
        return next(iter(set(children(service.process.pid)) - ours), None)

    runner = wait_until(orphan, 5, "an orphan under the supervisor")
    os.kill(service.child("tasks"), signal.SIGKILL)
    time.sleep(1)
    assert lives(runner)
    # It should also be reaped once it ends: no zombie stays.
    wait_until(lambda: not Path(f"/proc/{runner}").exists(), 6, "the orphan is reaped")


def test_it_says_when_the_port_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = try_up(tmp_path / "data", "--port", port)

    assert result.returncode == 2
    assert result.stderr == (
        f"gpucoord: Port {port} on 127.0.0.1 is taken. Choose another with --port.\n"
    )


def test_it_says_when_it_runs_already(service: Service) -> None:
    result = try_up(service.data)

    assert result.returncode == 2
    assert f"already runs on {service.data} (process {service.process.pid})" in result.stderr
    assert result.stderr.count("\n") == 1


def test_it_says_when_the_data_folder_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    result = try_up(tmp_path / "file" / "data")

    assert result.returncode == 2
    assert f"The data folder {tmp_path / 'file' / 'data'} can't be used" in result.stderr
    assert "Traceback" not in result.stderr


def test_it_refuses_a_database_that_a_newer_version_has_changed(service: Service) -> None:
    service.stop()
    with sqlite3.connect(service.database) as writer:
        writer.execute(
            "INSERT INTO django_migrations (app, name, applied)"
            " VALUES ('scheduler', '0999_from_the_future', '2030-01-01')"
        )

    result = try_up(service.data)

    assert result.returncode == 2
    assert "is newer than this gpucoord (it has scheduler.0999_from_the_future)" in result.stderr
    assert result.stderr.count("\n") == 1


def test_it_says_when_the_database_is_broken(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "gpucoord.sqlite3").write_bytes(b"no database at all" * 100)

    result = try_up(tmp_path / "data")

    assert result.returncode == 2
    assert result.stderr == "gpucoord: The database can't be used: file is not a database\n"


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has an NVIDIA driver")
def test_it_refuses_to_start_without_the_driver_that_is_required(tmp_path: Path) -> None:
    result = try_up(tmp_path / "data", GPUCOORD_REQUIRE_NVML="1", GPUCOORD_PROBE="nvml")

    assert result.returncode == 2
    assert result.stderr.startswith("gpucoord: GPUCOORD_REQUIRE_NVML is set: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has an NVIDIA driver")
def test_a_desktop_needs_the_driver_unless_the_settings_say_otherwise(tmp_path: Path) -> None:
    result = try_up(tmp_path / "data", GPUCOORD_PROFILE="desktop", GPUCOORD_PROBE="nvml")

    assert result.returncode == 2
    assert result.stderr.startswith("gpucoord: profile = desktop needs the NVIDIA driver")


def test_the_first_administrator_gets_a_password_that_is_printed_once(tmp_path: Path) -> None:
    service = Service(tmp_path / "data", FAKE, GPUCOORD_ADMIN_PASSWORD="")
    with service:
        assert service.text().count("Log in as admin with the password ") == 1
        service.stop()
        service.start()
        assert "password" not in service.text()


def test_it_listens_where_it_is_told_and_says_the_address(tmp_path: Path) -> None:
    service = Service(tmp_path / "data", FAKE).start("--host", "::1")
    try:
        assert service.address.startswith("http://[::1]:")
        assert httpx.get(f"{service.address}login/", timeout=LONGEST_S).status_code == 200
    finally:
        service.stop()
