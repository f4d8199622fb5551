from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections import defaultdict
from contextlib import closing
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpucoord_site.config.settings import Config
from gpucoord_site.demo import command, past, seeding
from gpucoord_site.demo.jobs import SUBMITTED_JOBS
from gpucoord_site.demo.past import DAY_S, HOURS, PEOPLE, history, log_of, past_jobs
from monitor.gpus.rows import snapshot as snapshots
from monitor.gpus.sampling.probes.simulated import Scenario
from monitor.incidents import rows as open_incidents
from monitor.models import Claim, Event, HostSample, Sample
from scheduler.facts.jobs import Outcome
from scheduler.models import Job
from scheduler.runner import files
from tests.builders import NOW
from tests.pace import LONGEST_S
from tests.processes.service import ROOT, wait_until

LOADS_BEFORE_JOBS = 3


def test_the_past_is_the_same_for_the_same_seed() -> None:
    assert past_jobs(8, 1, NOW) == past_jobs(8, 1, NOW)
    assert past_jobs(8, 1, NOW) != past_jobs(8, 2, NOW)


@pytest.mark.parametrize("minutes", range(0, 240, 10))
def test_each_program_has_a_past_whenever_the_demo_starts(minutes: int) -> None:
    now_t = int((NOW + timedelta(minutes=minutes)).timestamp())

    users = {
        (life.user, life.gpu) for life in past.lives(8, 1, now_t) if life.began > now_t - DAY_S
    }

    assert {("alice", 1), ("bob", 2), ("bob", 3), ("charlie", 5)} <= users


@pytest.mark.parametrize("hours", range(0, 24, 3))
def test_programs_that_never_rest_have_run_for_days(hours: int) -> None:
    at = NOW + timedelta(hours=hours)
    sweep = Scenario().at(at)
    begun = {p.user: p.created_at for p in sweep.identities.values() if p.created_at}

    assert at - begun["dana"] > timedelta(days=1)
    assert at - begun["llm"] > timedelta(days=1)


def test_every_kind_of_end_is_in_the_past() -> None:
    found = {job.outcome for job in past_jobs(8, 1, NOW)}

    assert found == {Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED, Outcome.TIMED_OUT}


def test_past_jobs_that_timed_out_ran_for_their_time_limit() -> None:
    late = [job for job in past_jobs(8, 1, NOW) if job.outcome is Outcome.TIMED_OUT]

    assert late
    assert all(job.time_limit == job.ended_at - job.started_at for job in late)


@pytest.mark.parametrize("gpus", [1, 8, 64])
def test_past_jobs_follow_one_another_on_a_gpu(gpus: int) -> None:
    ends = defaultdict(lambda: NOW - timedelta(hours=HOURS))
    for job in sorted(past_jobs(gpus, 1, NOW), key=lambda job: job.started_at):
        assert ends[job.gpu] <= job.started_at < job.ended_at < NOW
        assert job.submitted_at < job.started_at
        ends[job.gpu] = job.ended_at


def test_a_log_ends_as_its_job_did() -> None:
    for job in past_jobs(8, 1, NOW):
        last = log_of(job).splitlines()[-1]
        if job.exit_code == 0:
            assert last == "done"
        elif job.exit_code == 1:
            assert "out of memory" in last
        elif job.exit_code == 127:
            assert "not found" in last


def test_the_history_shows_the_jobs_on_their_gpus() -> None:
    scenario = Scenario(8, 1)
    ran = [job for job in past_jobs(8, 1, NOW) if job.gpu == 7]
    job = min(ran, key=lambda job: job.started_at)
    middle = job.started_at + (job.ended_at - job.started_at) / 2

    around = timedelta(seconds=30)
    seen = (snapshot for snapshot, _ in history(scenario, [job], "box", NOW))
    until_then = takewhile(lambda snapshot: snapshot.at < middle + around, seen)
    busy = [snapshot.gpus[7] for snapshot in until_then if snapshot.at > middle - around]

    assert min(gpu.utilization_pct or 0 for gpu in busy) > 50
    assert {str(gpu.state) for gpu in busy} == {"script_busy"}


@pytest.fixture
def seeded(data: Path, settings: Any, django_db_reset_sequences: None) -> Config:
    config = Config(data=data, probe="simulated", node="box")
    settings.CONFIG = config
    seeding.seed(config, data / "home", "one for all", NOW)
    return config


@pytest.mark.slow
def test_every_page_has_something_to_show(seeded: Config) -> None:
    newest = snapshots.newest("box")

    assert newest
    assert newest.probe == "simulated"
    assert len(newest.gpus) == 8
    # The host goes on as what it is.
    assert newest.host.cpu_count == os.cpu_count()
    assert Sample.objects.count() > 8 * 1000
    assert HostSample.objects.count() > 1000
    assert Event.objects.filter(kind="JOB_FINISHED").exists()
    # The mode shows the overuse of the last day, but is not defensive.
    assert 0.05 < (open_incidents.hog_share("box", 24, NOW) or 0) < 0.2
    assert set(Job.objects.values_list("state", flat=True)) == {"queued", "finished"}
    # It should also leave no claim behind of a job that has ended.
    assert not Claim.objects.filter(until_at__isnull=True).exists()
    # Each finished job of the last hours should have its log.
    for job in Job.objects.filter(state="finished", attempts__files_gone_at=None):
        path = files.log_path(seeded.data, job.pk, 1)
        assert path.read_text().strip()
        assert job.attempts.get().log_bytes == path.stat().st_size


def test_people_can_log_in_and_one_of_them_operates(db: None) -> None:
    people = seeding.people("admin", "one for all", NOW)

    assert people["admin"].is_superuser
    assert not people["alice"].is_staff
    assert all(people[name].check_password("one for all") for name in PEOPLE)


@pytest.mark.slow
def test_a_small_server_can_be_simulated_too(
    data: Path, settings: Any, django_db_reset_sequences: None
) -> None:
    settings.CONFIG = Config(data=data, probe="simulated", node="box", simulated_gpus=2)

    seeding.seed(settings.CONFIG, data / "home", "one for all", NOW)

    assert Job.objects.filter(state="queued").count() == len(SUBMITTED_JOBS)


def test_nothing_real_can_be_reached() -> None:
    environ = {
        "PATH": "/bin",
        "DATABASE_URL": "postgresql://real",
        "GPUCOORD_DATABASE_URL": "postgresql://real",
        "GPUCOORD_DATA": "/var/lib/gpucoord",
        "GPUCOORD_CONFIG": "/etc/gpucoord.toml",
        "GPUCOORD_PROBE": "nvml",
        "GPUCOORD_PORT": "8106",
    }

    ours = command.demo_environment(environ, Path("/tmp/demo"), "secret")

    assert not [value for value in ours.values() if "real" in value or "/var/lib" in value]
    assert ours["GPUCOORD_CONFIG"] == "/tmp/demo/gpucoord.toml"
    assert ours["GPUCOORD_PROBE"] == "simulated"
    assert (ours["PATH"], ours["GPUCOORD_PORT"]) == ("/bin", "8106")


class Demo:
    """A running `gpucoord demo` whose throw-away folder is looked for in `tmp`."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.log = tmp / "log"
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("GPUCOORD_", "DJANGO"))}
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gpucoord_site", "demo", "--port", "0"],
                env={**environ, "TMPDIR": str(tmp), "PYTHONPATH": str(ROOT)},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.address = wait_until(self._address, 30, f"an address in {self.log}")

    def _address(self) -> str | None:
        assert self.process.poll() is None, self.log.read_text()
        found = re.search(r"is at (http://\S+/)", self.log.read_text())
        return found[1] if found else None

    @property
    def folder(self) -> Path | None:
        return next(self.tmp.glob("gpucoord-demo-*"), None)

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(LONGEST_S)

    def rows(self, statement: str, *values: str) -> list[tuple[Any, ...]]:
        """Of the demo's database."""
        assert self.folder is not None
        database = self.folder / "data" / "gpucoord.sqlite3"
        with closing(sqlite3.connect(database, timeout=60)) as connection:
            return connection.execute(statement, values).fetchall()

    def page_of_alice(self, path: str) -> str:
        password = re.search(r"password of both: (\S+)", self.log.read_text())
        assert password is not None
        with httpx.Client(base_url=self.address, timeout=LONGEST_S) as browser:
            form = browser.get("/login/").text
            token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
            assert token is not None
            values = {"username": "alice", "password": password[1], "csrfmiddlewaretoken": token[1]}
            browser.post("/login/", data=values)
            return browser.get(path).text

    def jobs(self) -> list[int]:
        """The pids of the processes that work in the demo's folder: its jobs."""
        return [pid for pid in _pids() if str(self.tmp) in _cwd(pid)]

    def processes(self) -> list[int]:
        """The pids of all processes of the demo, also of models and of its users."""
        return [pid for pid in _pids() if str(self.tmp).encode() in _environment(pid)]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _cwd(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def test_its_folder_is_removed_although_a_process_still_writes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    removed = []

    def remove_in_time(path: Path, **_: object) -> None:
        removed.append(path)
        if len(removed) == 3:
            path.rmdir()

    monkeypatch.setattr(command.shutil, "rmtree", remove_in_time)
    command.clear_up(folder)

    assert not folder.exists()


@pytest.mark.processes
def test_a_job_that_began_while_the_folder_was_removed_is_ended(tmp_path: Path) -> None:
    folder = tmp_path / "gpucoord-demo-1"

    def job(folder: Path, **environ: str) -> subprocess.Popen[bytes]:
        paths = {"GPUCOORD_CHECKPOINT_DIR": f"{folder}/data/jobs/1/checkpoint"}
        return subprocess.Popen(["/bin/sleep", "600"], env=paths | environ)

    with (
        job(folder, GPUCOORD_NONCE="n") as own,
        job(tmp_path / "gpucoord-demo-12", GPUCOORD_NONCE="n") as of_another_demo,
        job(folder) as no_job,
    ):
        try:
            command.clear_up(folder)

            assert own.wait(LONGEST_S) == -signal.SIGKILL
            assert (of_another_demo.poll(), no_job.poll()) == (None, None)
        finally:
            for process in (own, of_another_demo, no_job):
                process.kill()


@pytest.mark.processes
@pytest.mark.parametrize(
    "how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL]
)
def test_nothing_of_it_stays(tmp_path: Path, how: signal.Signals) -> None:
    demo = Demo(tmp_path)
    try:
        page = wait_until(lambda: _get(f"{demo.address}login/"), 15, "the login page")
        wait_until(lambda: len(demo.jobs()) >= LOADS_BEFORE_JOBS, 15, "running jobs")
        assert len(demo.processes()) > LOADS_BEFORE_JOBS
        demo.process.send_signal(how)
        code = demo.process.wait(LONGEST_S)
    finally:
        demo.process.kill()
        demo.process.wait()

    assert "simulated" in page.text.lower()
    assert code == (-9 if how is signal.SIGKILL else 0)
    wait_until(lambda: demo.folder is None, 10, "the folder is removed")
    wait_until(lambda: not demo.jobs(), 5, "the jobs are ended")
    wait_until(lambda: not demo.processes(), 10, "every process has ended")


def _get(address: str) -> httpx.Response | None:
    try:
        return httpx.get(address)
    except httpx.TransportError:
        return None
