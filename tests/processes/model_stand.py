"""A database with a model service, the endpoint as a process, and model servers as instances."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import httpx

from tests.processes.service import ROOT, wait_until

SERVER = Path(__file__).with_name("model_server.py")
TEMPLATE = """
import django
django.setup()
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.utils import timezone
from monitor.owners import rows as tokens
from monitor.facts.accounts import TokenScope
from scheduler.models import ModelService
call_command("migrate", verbosity=0)
for name, scope in (("ada", "submit"), ("bob", "submit"), ("reader", "read")):
    user = User.objects.create(username=name)
    scopes = {TokenScope(scope)}
    print(tokens.create_token(user, timezone.now(), scopes=scopes)[1])
ModelService.objects.create(name="m", argv=["true"], gpus=0, concurrency=4, max_instances=2)
# Moves the write-ahead log into the file, which is copied.
connection.close()
"""
SERVE = """
import django, socket, sys
django.setup()
from gpucoord_site.service import model_endpoint
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
sys.exit(model_endpoint.serve(listening))
"""


class ModelStand:
    """The endpoint on a data folder of its own, with models whose instances are test servers."""

    def __init__(self, data: Path) -> None:
        self.data = data
        data.mkdir(exist_ok=True)
        self.log = data / "endpoint.log"
        self.env = environment(data)
        self._processes: list[subprocess.Popen[str]] = []
        self._by_port: dict[int, subprocess.Popen[str]] = {}
        self.endpoint: subprocess.Popen[str] | None = None
        self.port = 0
        (data / "run").mkdir(exist_ok=True)
        database, self.tokens = _template()
        shutil.copy(database, data / "gpucoord.sqlite3")
        self.token = self.tokens["ada"]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement; returns its rows."""
        connection = sqlite3.connect(self.data / "gpucoord.sqlite3", timeout=60)
        with closing(connection), connection:
            return connection.execute(statement, values).fetchall()

    def insert(self, table: str, **given: object) -> int:
        """Insert a row; the other columns are empty."""
        columns = self.sql(f"PRAGMA table_info(scheduler_{table})")
        empty: dict[str, object] = {
            name: "" if kind.startswith(("varchar", "text")) else 0
            for _, name, kind, is_needed, _, is_key in columns
            if is_needed and not is_key
        }
        values = empty | given
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        returned = self.sql(
            f"INSERT INTO scheduler_{table} ({names}) VALUES ({marks}) RETURNING id",
            *values.values(),
        )
        return int(returned[0][0])

    def add_instance(self, port: int, state: str = "ready", ready_in_s: float | None = None) -> int:
        expected = None if ready_in_s is None else _time(ready_in_s)
        return self.insert(
            "modelinstance", service_id=1, state=state, reason="", since=_time(), host="here",
            gpu_uuids="[]", port=port, in_flight=0, tasks_completed=0, failures=0,
            counted=0, expected_ready_at=expected,
        )  # fmt: skip

    def add_prompt(self, text: str = "hello", owner: str = "ada", **more: object) -> int:
        messages = json.dumps([{"role": "user", "content": text}])
        row: dict[str, object] = {
            "model": "m", "type": "generate", "priority": 3, "messages": messages,
            "parameters": "{}", "status": "queued", "attempt": 0, "host": "", "worker": "",
            "created_at": _time(), "waits_for": "", "result": "", "error": "",
        }  # fmt: skip
        (found,) = self.sql("SELECT id FROM auth_user WHERE username = ?", owner)
        return self.insert("prompt", owner_id=found[0], **{**row, **more})

    def column(self, table: str, name: str) -> list[Any]:
        """The values of a column in the order of the rows."""
        return [value for (value,) in self.sql(f"SELECT {name} FROM scheduler_{table} ORDER BY id")]

    def start_server(self, *options: str) -> int:
        """Start a model server; returns its port."""
        process = subprocess.Popen(
            [sys.executable, str(SERVER), *options], stdout=subprocess.PIPE, text=True
        )
        self._processes.append(process)
        assert process.stdout is not None
        with process.stdout as output:
            port = int(output.readline())
        self._by_port[port] = process
        return port

    def end_server(self, port: int) -> None:
        self._by_port[port].kill()
        self._by_port[port].wait()

    def serve(self, *options: str) -> int:
        """Start a model server as a ready instance; returns the port of the server."""
        port = self.start_server(*options)
        self.add_instance(port)
        return port

    def start_endpoint(self) -> None:
        """Nothing if it runs."""
        if self.endpoint is not None and self.endpoint.poll() is None:
            return
        if not self.port:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.port = free.getsockname()[1]
        with self.log.open("a") as log:
            self.endpoint = subprocess.Popen(
                [sys.executable, "-c", SERVE, str(self.port)],
                env=self.env, cwd=ROOT, stdout=log, stderr=log, text=True,
            )  # fmt: skip
        wait_until(self._answers, 20, f"an endpoint: {self.log}")

    def _answers(self) -> bool:
        assert self.endpoint is not None
        assert self.endpoint.poll() is None, self.log.read_text()
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def restart_endpoint(self) -> None:
        """A new process knows nothing of users from before.

        The old one may have written the use of clients that left in the test before.
        """
        if self.endpoint is not None:
            self.kill_endpoint()
        self.sql("DELETE FROM scheduler_modeluse")
        self.start_endpoint()

    def kill_endpoint(self) -> None:
        assert self.endpoint is not None
        self.endpoint.kill()
        self.endpoint.wait()

    def reset(self) -> None:
        """End the model servers, and forget all rows that a test has made."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes = []
        if self.sql("SELECT 1 FROM scheduler_quota") and self.endpoint is not None:
            # It reuses what it knows of a user for 3 s.
            self.kill_endpoint()
        for table in ("prompt", "modelinstance", "modeluse", "quota"):
            self.sql(f"DELETE FROM scheduler_{table}")
        self.sql("DROP TRIGGER IF EXISTS answered")
        self.sql("DROP TABLE IF EXISTS answers")
        self.sql("UPDATE scheduler_modelservice SET wanted_at = NULL")
        # The endpoint reads twice a second.
        time.sleep(0.8)

    def close(self) -> None:
        for process in (self.endpoint, *self._processes):
            if process is not None:
                process.kill()
                process.wait()


@cache
def _template() -> tuple[Path, dict[str, str]]:
    """A database with users and a model, made once; and the tokens of the users."""
    folder = Path(mkdtemp(prefix="gpucoord-models-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-c", TEMPLATE], env=environment(folder), cwd=ROOT, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    return folder / "gpucoord.sqlite3", dict(
        zip(("ada", "bob", "reader"), done.stdout.split(), strict=True)
    )


def environment(data: Path) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if name != "DATABASE_URL"},
        "GPUCOORD_DATA": str(data),
        "GPUCOORD_PROBE": "simulated",
        "GPUCOORD_NODE": "here",
        "DJANGO_SETTINGS_MODULE": "gpucoord_site.settings",
        "PYTHONPATH": str(ROOT),
    }


def _time(seconds: float = 0.0) -> str:
    """Now and some seconds, as SQLite has it."""
    at = datetime.now(UTC) + timedelta(seconds=seconds)
    return at.replace(tzinfo=None).isoformat(" ")


@contextmanager
def model_stand(data: Path) -> Iterator[ModelStand]:
    stand = ModelStand(data)
    try:
        yield stand
    finally:
        stand.close()


def stats(port: int) -> dict[str, int]:
    found: dict[str, int] = httpx.get(f"http://127.0.0.1:{port}/stats").json()
    return found
