from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpucoord_site.cli import container
from tests.processes.service import ROOT

pytestmark = pytest.mark.processes
# Says how it was called, and ends as a container could.
PODMAN = f"""#!{sys.executable}
import json, os, sys
print(json.dumps(sys.argv[1:]))
sys.exit(7)
"""


@pytest.fixture
def podman(tmp_path: Path) -> Path:
    """A folder with a program `podman`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "podman").write_text(PODMAN)
    (folder / "podman").chmod(0o755)
    return folder


def run(
    *words: str, path: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": str(path or "/nowhere"), "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, "-m", "gpucoord_site", "container", "run", *words],
        env=environ,
        capture_output=True,
        text=True,
    )


def test_podman_gets_the_job_s_gpus_folders_and_label(podman: Path) -> None:
    done = run(
        "--podman=--network=none",
        "pytorch",
        "python",
        "--epochs",
        "3",
        path=podman,
        GPUCOORD_JOB_ID="12",
        GPUCOORD_YIELD_FILE="/jobs/12/1.yield",
        GPUCOORD_CHECKPOINT_DIR="/jobs/12/checkpoint",
        CUDA_VISIBLE_DEVICES="GPU-a,GPU-b",
    )
    here = os.getcwd()

    assert done.returncode == 7
    assert json.loads(done.stdout) == [
        "run",
        "--rm",
        "--label=gpucoord.job=12",
        "--cgroups=disabled",
        "--device=nvidia.com/gpu=GPU-a",
        "--device=nvidia.com/gpu=GPU-b",
        "--env=GPUCOORD_JOB_ID",
        "--env=GPUCOORD_YIELD_FILE",
        "--env=GPUCOORD_CHECKPOINT_DIR",
        f"--volume={here}:{here}",
        "--volume=/jobs/12/checkpoint:/jobs/12/checkpoint",
        "--volume=/jobs/12:/jobs/12:ro",
        f"--workdir={here}",
        "--network=none",
        "pytorch",
        "python",
        "--epochs",
        "3",
    ]


def test_a_job_without_a_gpu_gets_no_device() -> None:
    arguments = container.arguments(
        {"GPUCOORD_JOB_ID": "12", "CUDA_VISIBLE_DEVICES": ""}, "/", [], "i"
    )

    assert [word for word in arguments if word.startswith("--device")] == []


def test_outside_of_a_job_it_says_how_to_submit(podman: Path) -> None:
    done = run("pytorch", path=podman)

    assert done.returncode == 125
    assert "gpucoord submit -- gpucoord container run" in done.stderr


def test_without_podman_it_says_so() -> None:
    done = run("pytorch", GPUCOORD_JOB_ID="12")

    assert done.returncode == 125
    assert "podman is not installed" in done.stderr
