"""Further hosts on one PostgreSQL: they join with a token, and run jobs without pages."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.bench.bench_live import Viewer, log_in
from tests.pace import LONGEST_S
from tests.processes.model_stand import SERVER
from tests.processes.service import ROOT, Service, token, wait_until
from tests.service.postgres_cluster import cluster, free_port

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


@pytest.fixture
def url() -> Iterator[str]:
    with cluster() as address:
        yield address


def node(data: Path, **env: str) -> subprocess.Popen[bytes]:
    """`gpucoord node` in a data folder of its own."""
    service = Service(data, root=ROOT, **env)
    with service.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "gpucoord_site", "node"],
            env=service._env, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip


def ended(process: subprocess.Popen[bytes], log: Path) -> str:
    assert process.wait(120) == 2
    return log.read_text()


def test_a_further_host_joins_with_a_token_and_sends_readings_without_pages(
    url: str, tmp_path: Path
) -> None:
    here = tmp_path / "east"
    there = {"DATABASE_URL": url, "GPUCOORD_NODE": "west"}
    with Service(here, DATABASE_URL=url, GPUCOORD_NODE="east") as east:
        west = tmp_path / "west"
        west.mkdir(mode=0o700)
        shutil.copy(here / "secret_key", west / "secret_key")

        said = ended(node(west, **there), tmp_path / "west.log")
        assert "The host west is not registered in this database" in said
        said = ended(node(west, **there, GPUCOORD_JOIN_TOKEN="gpj_guess"), tmp_path / "west.log")
        assert "GPUCOORD_JOIN_TOKEN is unknown, used or expired" in said

        made = subprocess.run(
            [sys.executable, "-m", "gpucoord_site", "join-token"],
            env=east._env, capture_output=True, text=True, check=True,
        ).stdout.split()[-1]  # fmt: skip
        keyless = there | {"GPUCOORD_NODE": "south", "GPUCOORD_JOIN_TOKEN": made}
        said = ended(node(tmp_path / "south", **keyless), tmp_path / "south.log")
        assert "The secret_key in the data folder differs from that of east" in said
        running = node(west, **there, GPUCOORD_JOIN_TOKEN=made)
        try:
            headers = {"Authorization": f"Bearer {token(east)}"}
            with httpx.Client(base_url=f"{east.address}api/", headers=headers, timeout=60) as api:
                wait_until(lambda: _hosts(api) == ["east", "west"], 60, "both hosts")
                answer = ended(
                    node(tmp_path / "copy", **there, GPUCOORD_JOIN_TOKEN=made),
                    tmp_path / "copy.log",
                )
                assert "gpucoord runs as west on another machine or data folder" in answer
        finally:
            running.terminate()
            running.wait(60)
        assert "runs the host west without pages" in (tmp_path / "west.log").read_text()


def _hosts(api: httpx.Client) -> list[str]:
    answer = api.get("hosts/")
    # A busy database.
    if answer.status_code == 503:
        return []
    return sorted(host["name"] for host in answer.json()["hosts"] if host["version"])


def _prepare(first: Service, here: Path, there: Path) -> str:
    """Make the data folder of a second host, with the key of the first; returns a join token."""
    there.mkdir(mode=0o700)
    shutil.copy(here / "secret_key", there / "secret_key")
    return subprocess.run(
        [sys.executable, "-m", "gpucoord_site", "join-token"],
        env=first._env, capture_output=True, text=True, check=True,
    ).stdout.split()[-1]  # fmt: skip


def test_a_job_on_another_host_is_chosen_followed_and_read_from_here(
    url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    here, there = tmp_path / "east", tmp_path / "west"
    with Service(here, DATABASE_URL=url, GPUCOORD_NODE="east") as east:
        made = _prepare(east, here, there)
        # Its address for other hosts is http://127.0.0.2:PORT.
        env = {"GPUCOORD_HOST": "127.0.0.2", "GPUCOORD_ALLOWED_HOSTS": "127.0.0.2"}
        env |= {"GPUCOORD_JOIN_TOKEN": made}
        port = ("--port", str(free_port()))
        west = Service(there, root=ROOT, DATABASE_URL=url, GPUCOORD_NODE="west", **env)
        headers = {"Authorization": f"Bearer {token(east)}"}
        west.start(*port)
        # A test that fails half-way leaves no service.
        request.addfinalizer(lambda: west.process.poll() is not None or west.stop())
        with _api(east.address, headers) as api:
            wait_until(lambda: _hosts(api) == ["east", "west"], 60, "both hosts")
            body = {"command": "echo from there; sleep 600", "gpus": 0}
            number = api.post("jobs/", json=body | {"host": "west"}).json()["id"]
            job = wait_until(lambda: _running(api, number), 60, "the job runs")
            assert job["host"] == "west"
            text = wait_until(lambda: api.get(f"jobs/{number}/log/").content, 60, "its log")
            assert text == b"from there\n"
            assert api.get(f"jobs/{number}/log/", params={"tail": 3}).content == text[-3:]
            assert httpx.get(f"{west.address}internal/log/guess/").status_code == 403
            _check_downloads(api)
            # The page here follows it over its WebSocket.
            tail = LogViewer(
                east.address, log_in(east, 1)[0], f"/ws/jobs/{number}/?attempt=1&from=0"
            )
            assert asyncio.run(tail.follow(b"from there"))
            # The job goes on without its service.
            west.process.terminate()
            west.process.wait(60)
        with _api(east.address, headers) as again:
            answer = again.get(f"jobs/{number}/log/")
            assert answer.status_code == 409
            assert "are on the host west" in answer.json()["detail"]
            lost = wait_until(lambda: _lost(again, number), 60, "the silence is noticed")
            assert lost["state"] == "running"
            west.start(*port)
            # The same job, adopted; nothing ran twice.
            wait_until(lambda: _lost(again, number) is None, 60, "contact again")
            again.post(f"jobs/{number}/cancel/")
            ended_job = wait_until(lambda: _finished(again, number), 60, "the end of the job")
            assert (ended_job["outcome"], len(ended_job["attempts"])) == ("cancelled", 1)
            west.stop()


def test_a_host_without_pages_serves_its_logs_to_the_others_and_nothing_else(
    url: str, tmp_path: Path
) -> None:
    here, there = tmp_path / "east", tmp_path / "west"
    with Service(here, DATABASE_URL=url, GPUCOORD_NODE="east") as east:
        made = _prepare(east, here, there)
        port = str(free_port())
        env = {"GPUCOORD_HOST": "127.0.0.2", "GPUCOORD_ALLOWED_HOSTS": "127.0.0.2"}
        env |= {"GPUCOORD_PORT": port, "GPUCOORD_JOIN_TOKEN": made, "GPUCOORD_NODE": "west"}
        west = node(there, DATABASE_URL=url, **env)
        try:
            with _api(east.address, {"Authorization": f"Bearer {token(east)}"}) as api:
                wait_until(lambda: _hosts(api) == ["east", "west"], 60, "both hosts")
                _check_downloads(api)
                names = {
                    host["name"]: host["address"] for host in api.get("hosts/").json()["hosts"]
                }
                assert names["west"] is None
            base = f"http://127.0.0.2:{port}"
            assert httpx.get(f"{base}/internal/log/guess/").status_code == 403
            for path in ("/", "/healthz", "/api/jobs/", "/internal/log/../../etc/passwd/"):
                assert httpx.get(f"{base}{path}").status_code == 404
        finally:
            west.terminate()
            west.wait(60)


def test_two_hosts_share_out_jobs_for_any_host_and_answer_for_each_others_models(
    url: str, tmp_path: Path
) -> None:
    here, there = tmp_path / "east", tmp_path / "west"
    both = {"DATABASE_URL": url, "GPUCOORD_SIMULATED_GPUS": "1"}
    with Service(here, GPUCOORD_NODE="east", GPUCOORD_SIMULATED_SEED="1", **both) as east:
        env = {"GPUCOORD_HOST": "127.0.0.2", "GPUCOORD_ALLOWED_HOSTS": "127.0.0.2"}
        env |= {"GPUCOORD_JOIN_TOKEN": _prepare(east, here, there), "GPUCOORD_NODE": "west"}
        env |= {"GPUCOORD_SIMULATED_SEED": "2", "GPUCOORD_MODELS_PORT": str(free_port())}
        key = token(east)
        west = Service(there, root=ROOT, **both, **env)
        with (
            closing_service(west, "--port", str(free_port())),
            _api(east.address, {"Authorization": f"Bearer {key}"}) as api,
        ):
            wait_until(lambda: _hosts(api) == ["east", "west"], 60, "both hosts")
            body = {"command": "sleep 600", "gpus": 1, "exclusive": True}
            _started(api, body | {"host": "east"})
            # The GPU of east is taken.
            job = _started(api, body)
            assert job["host"] == "west"
            api.post(f"jobs/{job['id']}/cancel/")
            _check_stream(api, key)


def _started(api: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    number = api.post("jobs/", json=body).raise_for_status().json()["id"]
    return wait_until(lambda: _running(api, number), 60, f"job {number} runs")


def _check_stream(api: httpx.Client, key: str) -> None:
    """The model runs on west alone; a stream comes through the endpoint of east."""
    command = [sys.executable, str(SERVER), "--model", "{model}", "--port", "{port}"]
    account = pwd.getpwuid(os.geteuid()).pw_name
    service = {"name": "m", "command": command, "gpus": 1, "account": account, "min_instances": 1}
    api.post("models/", json=service).raise_for_status()
    wait_until(lambda: _ready_on(api) == ["west"], 90, "the model on west")
    base = wait_until(lambda: api.get("models/").json()["base_url"], 60, "an endpoint on east")
    headers = {"Authorization": f"Bearer {key}"}
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}

    def streamed() -> str | None:
        address = f"{base}/chat/completions"
        with httpx.stream("POST", address, json=body, headers=headers, timeout=60) as answer:
            text = answer.read().decode()
        return text if answer.status_code == 200 else None

    text = wait_until(streamed, 30, "a stream from west")
    assert "quick" in text
    assert text.endswith("data: [DONE]\n\n")
    api.delete("models/m/")
    wait_until(lambda: _ready_on(api) == [], 60, "the model has ended")


def _ready_on(api: httpx.Client) -> list[str]:
    models = api.get("models/").json()["models"]
    return [
        one["host"] for model in models for one in model["instances"] if one["state"] == "ready"
    ]


@contextmanager
def closing_service(service: Service, *options: str) -> Iterator[None]:
    service.start(*options)
    try:
        yield
    finally:
        service.stop()


class LogViewer(Viewer):
    """The page of a job: the frames of its WebSocket."""

    async def follow(self, text: bytes) -> bool:
        """Whether the text arrives."""
        self._text, self._arrived = text, asyncio.Event()
        place = urlsplit(self.address)
        loop = asyncio.get_running_loop()
        assert place.port
        await loop.create_connection(lambda: self, str(place.hostname), place.port)
        await asyncio.wait_for(self._arrived.wait(), LONGEST_S)
        self.transport.close()
        return True

    def _take(self, frame: bytes, arrived: float) -> None:
        del arrived
        if self._text in frame:
            self._arrived.set()


def _api(address: str, headers: dict[str, str]) -> httpx.Client:
    return httpx.Client(base_url=f"{address}api/", headers=headers, timeout=60)


def _running(api: httpx.Client, number: int) -> dict[str, Any] | None:
    job: dict[str, Any] = api.get(f"jobs/{number}/").json()
    return job if job["state"] == "running" else None


def _check_downloads(api: httpx.Client) -> None:
    """A whole log and the result file of a job on the host west, in pieces from another host."""
    command = """seq 300000; echo '{"loss": 0.5}' > "$GPUCOORD_RESULT_FILE\""""
    made = api.post("jobs/", json={"command": command, "gpus": 0, "host": "west"}).json()["id"]
    job = wait_until(lambda: _finished(api, made), 60, "the end of the job")
    whole, size = b"", None
    while size is None or len(whole) < size:
        answer = api.get(f"jobs/{made}/log/", params={"offset": len(whole), "limit": 500_000})
        assert answer.status_code == 200
        assert answer.content
        whole, size = whole + answer.content, int(answer.headers["X-Log-Size"])
    assert whole == b"".join(b"%d\n" % number for number in range(1, 300_001))
    assert job["result"]["output"] == {"loss": 0.5}


def _lost(api: httpx.Client, number: int) -> dict[str, Any] | None:
    job: dict[str, Any] = api.get(f"jobs/{number}/").json()
    return job if job["contact_lost_since"] else None


def _finished(api: httpx.Client, number: int) -> dict[str, Any] | None:
    job: dict[str, Any] = api.get(f"jobs/{number}/").json()
    return job if job["state"] == "finished" else None


def test_a_node_needs_postgresql(tmp_path: Path) -> None:
    said = ended(node(tmp_path / "data"), tmp_path / "data.log")

    assert "gpucoord node needs the PostgreSQL database of DATABASE_URL" in said
