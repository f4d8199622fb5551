"""Long tasks run in a cluster of their own, and do not look like a dead cluster."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.service import ROOT, Service, lives, wait_until

pytestmark = pytest.mark.processes
LONG_S = 25
QUEUE_LONG_TASK = f"""
import django
django.setup()
from django.conf import settings
from django_q.tasks import async_task
cluster = settings.REPORT_CLUSTER["cluster_name"]
for _ in range(2):
    async_task("time.sleep", {LONG_S}, q_options={{"cluster": cluster, "save": False}})
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "data", "tests.processes.fake_settings") as running:
        yield running


def queued(service: Service) -> int:
    with sqlite3.connect(f"file:{service.database}?mode=ro", uri=True, timeout=60) as reader:
        query = "SELECT COUNT(*) FROM django_q_ormq WHERE key LIKE '% reports'"
        return int(reader.execute(query).fetchone()[0])


def test_canaries_come_back_while_long_tasks_wait_for_each_other(service: Service) -> None:
    first = wait_until(lambda: service.state().canary_t, 30, "a first canary")
    assert "reports" not in [child.name for child in service.state().children]
    subprocess.run([sys.executable, "-c", QUEUE_LONG_TASK], env=service._env, cwd=ROOT, check=True)

    def started() -> list[int]:
        return [c.pid for c in service.state().children if c.name == "reports" and c.pid]

    (pid,) = wait_until(started, 20, "a report cluster")
    tasks = service.child("tasks")
    later = wait_until(
        lambda: (t := service.state().canary_t) and t > first + 10 and t, 40, "canaries go on"
    )
    assert later > first
    assert queued(service) > 0
    assert lives(pid)
    assert service.child("tasks") == tasks
    assert "no longer takes tasks" not in service.text()
