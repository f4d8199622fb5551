from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.runner import process_tree
from tests.processes.service import ROOT, Service

pytestmark = pytest.mark.processes
SECRET = "not-for-others-4711"
PROGRAM = """
import os, subprocess, sys
from gpucoord_site.config import file as secret_variables
secret_variables.hide()
own = open("/proc/self/environ", "rb").read()
child = subprocess.run(["/usr/bin/env"], capture_output=True).stdout
for name in secret_variables.SECRET_VARIABLES:
    assert os.environ[name] == sys.argv[1], name
print(sys.argv[1].encode() in own, sys.argv[1].encode() in child, b"GPUCOORD_PORT=1" in own)
"""


def test_secrets_are_hidden_from_proc_and_from_children_but_not_from_the_settings() -> None:
    from gpucoord_site.config.file import SECRET_VARIABLES

    env = dict.fromkeys(SECRET_VARIABLES, SECRET) | {"GPUCOORD_PORT": "1", "PYTHONPATH": str(ROOT)}
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM, SECRET], env=env, capture_output=True, check=True, text=True
    )

    assert output.stdout.split() == ["False", "False", "True"]


def test_no_process_of_the_service_shows_a_secret(tmp_path: Path) -> None:
    secrets = {"GPUCOORD_ADMIN_PASSWORD": SECRET, "GPUCOORD_TOKEN": SECRET, "PGPASSWORD": SECRET}
    with Service(tmp_path / "data", **secrets) as service:
        service.members()
        everyone = [
            service.process.pid,
            *(p.pid for p in process_tree.descendants(service.process.pid)),
        ]
        shown = [pid for pid in everyone if SECRET.encode() in _environ(pid)]
        assert len(everyone) > 5
        assert shown == []
        assert b"GPUCOORD_DATA" in _environ(service.process.pid)


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
