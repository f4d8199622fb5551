"""Jobs that share gpucoord's account can't open its files, where the kernel has Landlock."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from scheduler.execution.steps.specs import SpecWriter
from scheduler.runner import files
from scheduler.runner.confine import landlock
from tests import jobs_made
from tests.processes.attempts import RunningAttempt

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock"),
]
Run = Callable[..., RunningAttempt]


@pytest.fixture
def closed(tmp_path: Path) -> dict[str, Any]:
    """The spec of such a job: its data folder is closed but for two folders."""
    data = tmp_path / "data"
    (data / "own").mkdir(parents=True)
    (data / "told").mkdir()
    (data / "told" / "1.yield").write_text("leave")
    (data / "secret_key").write_text("the-secret")
    (tmp_path / "elsewhere").mkdir()
    log = data / "jobs" / "1" / "1" / files.LOG
    return {
        "cwd": str(tmp_path / "elsewhere"),
        "closed": [str(data)],
        "opened": [str(data / "own"), str(log)],
        "readable": [str(data / "told")],
    }


def _run(run: Run, closed: dict[str, Any], line: str) -> tuple[int | None, str]:
    attempt = run("/bin/sh", "-c", line, **closed)
    return attempt.result().exit_code, attempt.log()


@pytest.mark.parametrize(
    "line",
    [
        "cat ../data/secret_key",
        "echo forged > ../data/secret_key",
        "rm ../data/secret_key",
        "touch ../data/new",
        "mv ../data/secret_key .",
        "ln ../data/secret_key there",
        "cat ../data/jobs/1/1/spec.json",
        "echo x >> ../data/told/1.yield",
    ],
)
def test_a_closed_file_can_be_neither_read_nor_changed(
    run: Run, closed: dict[str, Any], tmp_path: Path, line: str
) -> None:
    code, log = _run(run, closed, line)

    assert code not in (0, None)
    assert "the-secret" not in log
    assert (tmp_path / "data" / "secret_key").read_text() == "the-secret"
    assert (tmp_path / "data" / "told" / "1.yield").read_text() == "leave"


@pytest.mark.parametrize(
    "line",
    [
        "echo saved > ../data/own/last && cat ../data/own/last",
        "cat ../data/told/1.yield",
        "echo more > /dev/stderr",
        "mkdir here && echo x > here/file && cat here/file && ls / ~ > /dev/null",
        "echo x > /dev/null && cat /proc/self/status > /dev/null",
        "sleep 60 & kill $!",
    ],
)
def test_what_a_job_needs_stays_open(run: Run, closed: dict[str, Any], line: str) -> None:
    code, log = _run(run, closed, line)

    assert (code, "denied" in log) == (0, False)


@pytest.mark.parametrize("paths", [[], ["/etc/passwd"]])
def test_the_environment_of_other_processes_is_closed(run: Run, paths: list[str]) -> None:
    """Both run as the same account, which is not root: root may read all with other rights."""
    is_root = os.geteuid() == 0
    account: dict[str, Any] = {"uid": 65534, "gid": 65534, "groups": []} if is_root else {}
    other: dict[str, Any] = {}
    if is_root:
        other = {"user": 65534, "group": 65534, "extra_groups": []}
    with subprocess.Popen(["sleep", "60"], **other) as process:
        try:
            line = f"cat /proc/{process.pid}/environ > /dev/null"
            attempt = run("/bin/sh", "-c", line, cwd="/", closed=paths, **account)
            assert attempt.result().exit_code == bool(paths)
        finally:
            process.kill()


@pytest.mark.skipif(landlock.version() < landlock.ABI_SCOPES, reason="before Linux 6.12")
def test_other_processes_get_no_signal(run: Run, closed: dict[str, Any]) -> None:
    assert _run(run, closed, f"kill -0 {os.getpid()}")[0] == 1


def test_a_kernel_without_landlock_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 0)

    assert "no Landlock" in landlock.problem(["/tmp"])


@pytest.mark.django_db
@pytest.mark.parametrize(("superuser", "uid"), [(False, 1000), (True, 1000), (False, 0)])
def test_jobs_of_ordinary_users_without_root_are_closed_off(
    superuser: bool, uid: int, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    owner = User.objects.create(username="no.account@example", is_superuser=superuser)
    writer = SpecWriter(
        data=data, run_as="service", grace_s=1, wake_folder=data / "run", closed=(data,)
    )
    _, attempt = jobs_made.placed(owner)
    body = files.read_json(writer.write(attempt) / files.SPEC) or {}

    assert bool(body["closed"]) == (uid == 1000 and not superuser)
    assert Path(body["yield_file"]).parent.name == (
        "yield" if body["closed"] else str(attempt.job_id)
    )
