"""The batch script of a task of Slurm, as a process: two tasks of one attempt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.runtime.probes.process_identity import boot_id
from scheduler.execution.engines.slurm import PROGRAM
from scheduler.runner import accounts, attempt_files, files, process_tree
from scheduler.runner.launch import ROOT
from scheduler.runner.spec import Claimed, Spec
from tests.pace import LONGEST_S
from tests.processes.attempts import NONCE

pytestmark = pytest.mark.processes
# Waits as the batch script does, with one child that ends by itself.
WAITS = """
import os, signal, sys, time
from pathlib import Path
from scheduler.runner import batch
signal.pthread_sigmask(signal.SIG_BLOCK, {*batch.PASSED_ON, signal.SIGCHLD})
if os.fork() == 0:
    time.sleep(1)
    os._exit(0)
print("ready", flush=True)
batch._wait(Path(sys.argv[1]), sys.argv[2], 0)
"""


def folder_of(path: Path, command: str) -> Path:
    """The folder of an attempt that runs this command."""
    folder = path / "1" / "1"
    files.make_folder(folder)
    own = accounts.account_for("root", account=None, superuser=True, run_as="service")
    env = accounts.environment(own, {}, job_id=1, attempt=1, nonce=NONCE, gpu_uuids=())
    spec = Spec(
        job_id=1, attempt=1, nonce=NONCE, argv=["/bin/sh", "-c", command], cwd=str(folder),
        env=env, account=own.name,
    )  # fmt: skip
    files.write_json(folder / files.SPEC, spec.to_json())
    return folder


def run_task(folder: Path, ref: str, gpus: str) -> int:
    """Run the batch script as the engine's task `ref` with these GPUs; returns its exit code."""
    argv = [sys.executable, "-I", "-S", "-c", PROGRAM, str(ROOT), str(folder)]
    env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": ref, "CUDA_VISIBLE_DEVICES": gpus}
    return subprocess.run(argv, env=env, timeout=LONGEST_S, check=False).returncode


def test_the_claim_names_the_task_and_the_job_gets_its_variables(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 'echo "$SLURM_JOB_ID on $CUDA_VISIBLE_DEVICES"; exit 3')

    codes = [run_task(folder, "71", "2,3"), run_task(folder, "72", "0,1")]

    assert codes == [3, 0]
    assert (folder / files.LOG).read_text() == "71 on 2,3\n"
    claimed = attempt_files.read_claim(folder, NONCE)
    assert claimed is not None
    assert claimed.engine_ref == "71"


def test_a_task_writes_its_variables_into_no_file_of_the_attempt(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "cp spec.json during.json")

    run_task(folder, "71", "2,3")

    for name in ("during.json", files.SPEC):
        assert "SLURM_JOB_ID" not in (folder / name).read_text()


@pytest.mark.parametrize(("ref", "is_passed_on"), [("71", True), ("72", False)])
def test_a_signal_to_a_task_reaches_only_its_own_runner(
    tmp_path: Path, ref: str, is_passed_on: bool
) -> None:
    with subprocess.Popen(["sleep", "600"]) as runner:
        claimed = Claimed(
            nonce=NONCE, runner=True, pid=runner.pid, boot_id=boot_id(), engine_ref="71",
            start_ticks=process_tree.start_ticks_of(runner.pid) or 0,
        )  # fmt: skip
        assert files.claim(tmp_path, claimed.to_json())
        argv = [sys.executable, "-c", WAITS, str(tmp_path), NONCE]
        env = {**os.environ, "SLURM_JOB_ID": ref}
        with subprocess.Popen(argv, cwd=ROOT, env=env, stdout=subprocess.PIPE) as task:
            assert task.stdout is not None
            assert task.stdout.readline() == b"ready\n"
            task.send_signal(signal.SIGTERM)
            task.wait(LONGEST_S)
        assert task.returncode == 0
        is_ended = runner.poll() is not None
        runner.kill()

    assert is_ended is is_passed_on
