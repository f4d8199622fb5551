"""Pages answer although nothing can be written to the log; a web process that hangs is replaced."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.pace import Stopwatch
from tests.processes.service import Service, lives, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow]


class Unwritable(Service):
    """A service whose stdout and stderr are `descriptor`."""

    def start_on(self, descriptor: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpucoord_site", "up", "--port", "0"],
            env=self._env,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
        self.address = self.state().address


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Unwritable]:
    made = Unwritable(tmp_path / "data")
    yield made
    if made.process.poll() is None:
        made.stop()


def _fail_to_log_in(service: Service) -> int:
    """Each failed login writes a line."""
    with httpx.Client(base_url=service.address, timeout=20) as client:
        client.get("/login/")
        body = {"username": "x" * 100, "password": "no", "csrfmiddlewaretoken": ""}
        body["csrfmiddlewaretoken"] = client.cookies.get("csrftoken", "")
        return client.post("/login/", data=body).status_code


def _expect_answers(service: Service, count: int = 12) -> None:
    for _ in range(count):
        assert _fail_to_log_in(service) < 500
    watch = Stopwatch()
    assert service.healthz().status_code == 200
    assert not watch.has_run(5)


def _healthy(service: Service) -> bool:
    return service.healthz().status_code == 200


def test_pages_answer_after_the_reader_of_the_log_has_ended(service: Unwritable) -> None:
    reader, writer = os.pipe()
    service.start_on(writer)
    os.close(writer)
    wait_until(lambda: _healthy(service), 60, "health")
    os.close(reader)

    _expect_answers(service)
    assert service.stop()[0] == 0


def test_pages_answer_while_the_reader_of_the_log_is_stopped(service: Unwritable) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    service.start_on(writer)
    os.close(writer)
    wait_until(lambda: _healthy(service), 60, "health")

    _expect_answers(service, 60)
    assert service.stop()[0] == 0
    os.close(reader)


def test_pages_answer_while_the_disk_of_the_log_is_full(service: Unwritable) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    service.start_on(full)
    os.close(full)
    wait_until(lambda: _healthy(service), 60, "health")

    _expect_answers(service)
    assert service.stop()[0] == 0


def test_a_web_process_that_does_not_answer_is_replaced(tmp_path: Path) -> None:
    with Service(tmp_path / "data") as service:
        wait_until(lambda: _healthy(service), 60, "health")
        stopped = service.child("web")
        # By then it has answered the supervisor once.
        time.sleep(8)
        os.kill(stopped, signal.SIGSTOP)

        wait_until(lambda: not lives(stopped), 40, "the end of the stopped process")
        wait_until(lambda: service.child("web") not in (0, stopped), 20, "a new web process")
        wait_until(lambda: _healthy(service), 30, "health")
        assert "WEB_STUCK" in service.text()
