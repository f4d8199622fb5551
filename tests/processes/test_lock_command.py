"""`gpucoord lock` with real processes: it holds, waits, gives up, and becomes the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.runner.confine import locks
from scheduler.runner.confine.locks import HeldLocks
from tests.pace import LONGEST_S
from tests.processes.attempts import wait_for

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]


def start(folder: Path, *words: str, **environ: str) -> subprocess.Popen[str]:
    known = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_")}
    return subprocess.Popen(
        [sys.executable, "-m", "gpucoord_site", "lock", "--folder", str(folder), *words],
        cwd=ROOT,
        env=known | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ran(folder: Path, *words: str, **environ: str) -> tuple[int, str]:
    process = start(folder, *words, **environ)
    out, err = process.communicate(timeout=LONGEST_S)
    assert "Traceback" not in err
    return process.returncode, out + err


def test_the_command_runs_with_its_gpus_and_its_exit_code_is_passed_on(tmp_path: Path) -> None:
    line = "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER; exit 7"

    assert ran(tmp_path, "2", "0,1", "--", "sh", "-c", line) == (7, "0,1,2 PCI_BUS_ID\n")
    own = {"CUDA_VISIBLE_DEVICES": "GPU-abc"}
    assert ran(tmp_path, "2", "--", "sh", "-c", line, **own)[1] == "GPU-abc\n"


def test_the_locked_gpus_are_said_as_json(tmp_path: Path) -> None:
    process = start(tmp_path, "2", "0", "--json", "--", "echo", "output")
    out, err = process.communicate(timeout=LONGEST_S)

    assert (out, json.loads(err)) == ("output\n", {"gpus": [0, 2]})


def test_the_gpu_is_held_while_it_runs_and_the_command_is_who_holds_it(tmp_path: Path) -> None:
    process = start(tmp_path, "3", "--", "sleep", "60")
    file = tmp_path / "gpu3.lock"
    wait_for(lambda: [h.program for h in locks.holders([file])[file]] == ["sleep"])

    code, said = ran(tmp_path, "--no-wait", "3", "--", "echo", "ran")
    assert (code, "sleep (pid" in said, "ran" in said) == (75, True, False)
    assert ran(tmp_path, "--no-wait", "1", "--", "echo", "ran") == (0, "ran\n")
    process.terminate()
    process.communicate()
    assert process.returncode == -15
    wait_for(lambda: isinstance(locks.lock_gpus(tmp_path, [3], alone=True), HeldLocks))


def test_a_command_that_closes_what_it_does_not_know_keeps_its_gpu(tmp_path: Path) -> None:
    closes = "import os, time; os.closerange(3, 256); print('closed', flush=True); time.sleep(60)"
    process = start(tmp_path, "3", "--", sys.executable, "-c", closes)
    assert process.stdout is not None
    assert process.stdout.readline() == "closed\n"

    code, said = ran(tmp_path, "--no-wait", "3", "--", "echo", "ran")
    assert (code, f"(pid {process.pid})" in said) == (75, True)
    process.kill()
    process.communicate()
    wait_for(lambda: isinstance(locks.lock_gpus(tmp_path, [3], alone=True), HeldLocks))


def test_it_waits_and_says_for_whom(tmp_path: Path) -> None:
    locked = locks.lock_gpus(tmp_path, [0], alone=True)
    assert isinstance(locked, HeldLocks)
    process = start(tmp_path, "0", "--", "echo", "ran")
    assert process.stderr is not None
    assert f"(pid {os.getpid()}); waiting" in process.stderr.readline()

    locked.release()

    out, _ = process.communicate(timeout=LONGEST_S)
    assert (process.returncode, out) == (0, "ran\n")


def test_the_whole_host_can_be_held(tmp_path: Path) -> None:
    locked = locks.lock_gpus(tmp_path, [5], alone=False)
    assert ran(tmp_path, "--wait", "0.1", "all", "--", "echo", "ran")[0] == 75
    assert isinstance(locked, HeldLocks)
    locked.release()
    assert ran(tmp_path, "--wait", "5", "all", "--", "echo", "ran") == (0, "ran\n")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["0"], 2, "say what to run"),
        (["x", "--", "true"], 2, "no GPU's number"),
        ([",", "--", "true"], 2, "say which GPU"),
        (["4096", "--", "true"], 2, "there is no GPU 4096 here"),
        (["--wait", "nan", "0", "--", "true"], 2, "no time to wait"),
        (["0", "--", "trainn"], 127, "no such command"),
        (["0", "--", "/etc/passwd"], 126, "Permission denied"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, words: list[str], code: int, says: str) -> None:
    code, said = ran(tmp_path, *words)
    assert code == code
    assert says in said


def test_who_can_not_read_the_settings_is_told_what_to_say(tmp_path: Path) -> None:
    environ = os.environ | {"GPUCOORD_CONFIG": str(tmp_path / "none.toml")}
    words = [sys.executable, "-m", "gpucoord_site", "lock", "0", "--", "true"]
    done = subprocess.run(
        words, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=LONGEST_S
    )

    assert (done.returncode, "--folder" in done.stderr) == (125, True)


def test_an_unsafe_lock_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "gpu0.lock").symlink_to("/etc/passwd")

    code, said = ran(tmp_path, "0", "--", "true")

    assert (code, "gpu0.lock can't be locked: it is a link; the page of the GPU" in said) == (
        125,
        True,
    )
