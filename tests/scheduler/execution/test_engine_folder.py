"""The folder of an attempt in Slurm: the job's account fills it, and root takes it away."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from tempfile import gettempdir

import pytest
from django.contrib.auth.models import User

from scheduler.execution.steps.specs import SpecWriter
from scheduler.models import Attempt, Job
from scheduler.runner import clearing, files
from scheduler.runner.accounts import Account
from tests import jobs_made
from tests.pace import LONGEST_S

OTHER = 61_999
NESTED = """
import os, sys
os.chdir(sys.argv[1])
for _ in range(1500):
    os.mkdir("d")
    os.chdir("d")
"""
FILLING = """
import os, sys
print("ready", flush=True)
while True:
    try:
        for n in range(50):
            os.makedirs(f"{sys.argv[1]}/{n}/a/b", exist_ok=True)
            open(f"{sys.argv[1]}/{n}/a/f", "w").close()
    except OSError:
        pass
"""
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root writes for other accounts"),
]


@pytest.fixture
def job(alice: User) -> Job:
    return jobs_made.waiting(alice)


@pytest.fixture
def specs(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SpecWriter]:
    account = Account("other", "/", uid=OTHER, gid=OTHER)
    monkeypatch.setattr(SpecWriter, "_account", lambda *_: account)
    base = tmp_path_factory.mktemp("engine")
    parents = [base, *takewhile(lambda parent: parent != Path(gettempdir()), base.parents)]
    before = [parent.stat().st_mode for parent in parents]
    for parent in parents:
        parent.chmod(0o711)
    checkpoints = base / "own"
    yield SpecWriter(
        data=base / "data", run_as="auto", grace_s=5, wake_folder=base, checkpoints=checkpoints
    )
    for parent, mode in zip(parents, before, strict=True):
        parent.chmod(mode)
    # pytest could not delete folders that are nested so deeply.
    assert clearing.move_aside(base, "own")
    assert clearing.empty(base, time.monotonic() + LONGEST_S)


def write(specs: SpecWriter, job: Job, nonce: str) -> Path:
    return specs.write_for_engine(Attempt(job=job, number=1, nonce=nonce))[0]


@contextmanager
def as_account(code: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    # Python may lie in a folder that the account can't pass.
    become = f"import os; os.setgid({OTHER}); os.setuid({OTHER})\n"
    command = [sys.executable, "-c", become + code, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/") as process:
        yield process
        process.kill()


def nonce_in(folder: Path) -> object:
    return (files.read_json(folder / files.SPEC) or {}).get("nonce")


def test_a_folder_with_deeply_nested_folders_is_made_anew(specs: SpecWriter, job: Job) -> None:
    folder = write(specs, job, "1" * 32)
    with as_account(NESTED, folder) as process:
        assert process.wait(60) == 0

    assert nonce_in(write(specs, job, "2" * 32)) == "2" * 32
    assert sorted(path.name for path in folder.iterdir()) == [files.SPEC]
    assert folder.stat().st_uid == OTHER


def test_a_folder_that_is_filled_meanwhile_is_made_anew(specs: SpecWriter, job: Job) -> None:
    folder = write(specs, job, "0" * 32)
    with as_account(FILLING, folder) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for number in range(1, 60):
            nonce = f"{number:032x}"
            assert nonce_in(write(specs, job, nonce)) == nonce
