"""The service answers as its OpenAPI description says, for any request that schemathesis makes.

Values such as "2h" have a grammar that a JSON schema does not describe, so a request that is valid
by the schema may still be refused: `positive_data_acceptance` is left out.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(900)]
LEFT_OUT = "positive_data_acceptance"
LONGEST_S = 600


class Served:
    """A running web process: its address and a token of each user."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        self.log = folder / "web.log"
        environment = {k: v for k, v in os.environ.items() if k != "DATABASE_URL"} | {
            "GPUCOORD_DATA": str(folder / "data"),
            "GPUCOORD_PROBE": "simulated",
            # Users of the test have no account on this machine.
            "GPUCOORD_RUN_AS": "nobody",
            "DJANGO_SETTINGS_MODULE": "gpucoord_site.settings",
        }
        (folder / "data").mkdir(mode=0o700)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.contract.serve", str(port)],
                cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self.process.stdout is not None
        self.tokens = _first_line(self.process.stdout, self.log)

    def wait(self) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                httpx.get(f"{self.address}/api/openapi.json", timeout=60).raise_for_status()
            except httpx.TransportError:
                time.sleep(0.2)
            else:
                return
        pytest.fail(f"The web process does not answer: {self.log.read_text()}")


def _first_line(output: IO[bytes], log: Path) -> dict[str, str]:
    line = output.readline()
    assert line, f"The web process ended: {log.read_text()}"
    found: dict[str, str] = json.loads(line)
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("contract"))
    try:
        made.wait()
        yield made
    finally:
        made.process.terminate()
        made.process.wait(20)
        assert made.process.stdout is not None
        made.process.stdout.close()


@pytest.mark.parametrize(
    ("user", "phases"), [("carla", "examples,coverage"), ("root", "examples,fuzzing")]
)
def test_no_request_gets_5xx_or_an_undocumented_answer(
    served: Served, tmp_path: Path, user: str, phases: str
) -> None:
    header = f"Authorization: Bearer {served.tokens[user]}"
    schema = httpx.get(f"{served.address}/api/openapi.json").json()
    operations = sum(len(methods) for methods in schema["paths"].values())
    command = [
        Path(sys.executable).with_name("schemathesis"), "run", f"{served.address}/api/openapi.json",
        "-H", header, "--phases", phases, "--max-examples", "10",
        "--exclude-checks", LEFT_OUT, "--suppress-health-check", "all", "--seed", "1",
        "--continue-on-failure", "--request-timeout", "60", "--no-color",
    ]  # fmt: skip

    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )

    assert done.returncode == 0, done.stdout[-20_000:]
    assert f"Tested: {operations}" in done.stdout
    assert "Traceback" not in served.log.read_text()


def test_the_token_of_each_user_is_valid(served: Served) -> None:
    for token in served.tokens.values():
        header = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{served.address}/api/jobs/", headers=header).status_code == 200


def test_nothing_that_was_submitted_runs(served: Served) -> None:
    header = {"authorization": f"Bearer {served.tokens['root']}"}
    answer = httpx.get(f"{served.address}/api/jobs/?state=running", headers=header)

    assert answer.json()["total"] == 0
