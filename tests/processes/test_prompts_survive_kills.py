"""SIGKILL of the endpoint, the loops and the models' servers: each prompt is answered once."""

from __future__ import annotations

import os
import pwd
import random
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.pace import LONGEST_S
from tests.processes.model_stand import SERVER
from tests.processes.service import Service, children, lives, token, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(900)]
# Environment: GPUCOORD_TEST_KILLS replaces the number of kills.
KILLS = int(os.environ.get("GPUCOORD_TEST_KILLS", "25"))
PROMPTS_PER_KILL = 6
COMMAND = [
    sys.executable, str(SERVER), "--port", "{port}", "--tokens", "12", "--interval-s", "0.05",
]  # fmt: skip


class Host:
    """gpucoord with a model of two instances; it counts the answers of each prompt."""

    def __init__(self, service: Service) -> None:
        self.service = service
        headers = {"Authorization": f"Bearer {token(service)}"}
        self.http = httpx.Client(headers=headers, timeout=LONGEST_S)
        self.http.base_url = f"{service.address}api/"
        self.killed: Counter[str] = Counter()

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.service.database, timeout=60)
        with closing(connection), connection:
            return connection.execute(statement).fetchall()

    def add_model(self) -> None:
        account = pwd.getpwuid(os.geteuid()).pw_name
        fields = {"name": "m", "command": COMMAND, "gpus": 0, "account": account,
                  "min_instances": 2, "max_instances": 2, "concurrency": 4}  # fmt: skip
        self.http.post("models/", json=fields).raise_for_status()

    def instances(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.http.get("models/m/").json()["instances"]
        return found

    def count_answers(self) -> None:
        """The database itself counts each change of a prompt to `complete`."""
        self.sql("CREATE TABLE answers (prompt INTEGER)")
        self.sql(
            "CREATE TRIGGER answered AFTER UPDATE OF status ON scheduler_prompt"
            " WHEN NEW.status = 'complete' BEGIN INSERT INTO answers VALUES (NEW.id); END"
        )

    def send(self, count: int) -> list[int]:
        """The numbers of the acknowledged prompts."""
        numbers = []
        for _ in range(count):
            sent = self.http.post("prompts/", json={"model": "m", "prompt": "hello"})
            numbers.append(int(sent.raise_for_status().json()["id"]))
        return numbers

    def kill_one(self, chance: random.Random) -> None:
        part = chance.choice(("endpoint", "endpoint", "loop", "tasks", "server", "server"))
        pids: list[int] = []
        # A part that was killed just now may be starting.
        with suppress(AssertionError, httpx.HTTPError, IndexError):
            if part == "endpoint":
                pids = [self.service.child("models")]
            elif part == "tasks":
                pids = [self.service.child("tasks")]
            elif part == "loop":
                pids = [chance.choice(children(self.service.child("tasks")))]
            else:
                pids = [one["pid"] for one in self.instances() if one["pid"]][:1]
        for pid in filter(None, pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.killed[part] += 1

    def statuses(self) -> Counter[str]:
        return Counter(status for (status,) in self.sql("SELECT status FROM scheduler_prompt"))

    def close(self) -> None:
        pids = [one["pid"] for one in self.instances()]
        self.http.delete("models/m/").raise_for_status()
        self.http.close()
        wait_until(lambda: not any(pid and lives(pid) for pid in pids), 30, "models have ended")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Service(tmp_path / "data", GPUCOORD_REQUESTS_PER_MINUTE="6000") as service:
        wait_until(lambda: service.healthz().status_code == 200, 15, "a healthy service")
        made = Host(service)
        made.add_model()
        yield made
        made.close()


def test_no_prompt_is_lost_or_answered_twice_whatever_is_killed(host: Host) -> None:
    chance = random.Random(13)
    host.count_answers()
    sent: list[int] = []
    for _ in range(KILLS):
        sent += host.send(PROMPTS_PER_KILL)
        time.sleep(chance.uniform(0.3, 2.5))
        host.kill_one(chance)

    def all_ended() -> bool:
        return set(host.statuses()) <= {"complete", "failed"}

    wait_until(all_ended, LONGEST_S, f"all prompts have ended, {host.statuses()}")
    answers = Counter(row[0] for row in host.sql("SELECT prompt FROM answers"))
    rows = host.sql("SELECT id, status, error, result FROM scheduler_prompt ORDER BY id")
    sys.stdout.write(f"{len(sent)} prompts, {dict(host.statuses())}; killed {dict(host.killed)}\n")

    assert [row[0] for row in rows] == sent
    assert set(answers.values()) <= {1}
    for number, status, error, result in rows:
        assert (status == "complete") == (number in answers)
        assert len(result.split()) == 12 if status == "complete" else error
