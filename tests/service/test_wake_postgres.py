"""Wake-ups between hosts: two processes with data folders and names of their own, one database."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pace import LONGEST_S
from tests.processes.service import ROOT
from tests.service.postgres_cluster import cluster

pytestmark = [pytest.mark.postgres, pytest.mark.processes]
SETUP = (
    "import django; django.setup(); import select, sys, time;"
    " from monitor.runtime.rows import wakeups;"
)
LISTEN = """
with wakeups.Listener("scheduler") as listener:
    print("ready", flush=True)
    for line in sys.stdin:
        woken = bool(select.select([listener], [], [], 2)[0])
        print(woken, listener.drain(), flush=True)
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with cluster() as address:
        yield address


def environment(url: str, data: Path, node: str) -> dict[str, str]:
    return {
        **os.environ,
        "DATABASE_URL": url,
        "GPUCOORD_DATA": str(data),
        "GPUCOORD_NODE": node,
        "DJANGO_SETTINGS_MODULE": "gpucoord_site.settings",
        "PYTHONPATH": str(ROOT),
    }


def wake_from(url: str, data: Path, node: str, name: str) -> None:
    command = [sys.executable, "-c", f"{SETUP} wakeups.wake({name!r}, b'7')"]
    subprocess.run(command, env=environment(url, data, node), check=True, timeout=LONGEST_S)


def test_another_host_is_woken_and_this_one_only_once(url: str, tmp_path: Path) -> None:
    north, south = tmp_path / "north", tmp_path / "south"
    listening = subprocess.Popen(
        [sys.executable, "-c", SETUP + LISTEN],
        env=environment(url, north, "north"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with listening as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def heard() -> str:
            process.stdin.write("?\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            return process.stdout.readline().strip()  # type: ignore[union-attr]

        assert process.stdout.readline() == "ready\n"
        wake_from(url, south, "south", "scheduler")
        assert heard() == "True [b'7']"
        # It should hear itself by datagram alone, and other names not at all.
        wake_from(url, north, "north", "scheduler")
        first = heard()
        assert first == "True [b'7']"
        wake_from(url, south, "south", "live")
        assert heard().endswith("[]")
        process.stdin.close()
