from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.runner.confine import confinement
from scheduler.runner.confine.confinement import LogLimit

LIMIT = 1000


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "LOOK_S", 0.0)
    monkeypatch.setattr(confinement, "NEAR_S", 0.0)
    monkeypatch.setattr(confinement, "TAIL_BYTES", 100)


class Log:
    """A log as a job has it: opened once, only ever appended to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.limit = LogLimit(self.fd, LIMIT)

    def write(self, text: str) -> None:
        os.write(self.fd, text.encode())

    @property
    def text(self) -> str:
        return self.path.read_text()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path / "output.log")
    yield made
    os.close(made.fd)


def test_a_log_within_its_limit_is_left_alone(log: Log) -> None:
    log.write("x" * LIMIT)
    log.limit.beat()
    log.limit.finish()

    assert log.text == "x" * LIMIT


def test_a_log_that_grows_on_and_on_stays_at_its_limit_and_says_so(log: Log) -> None:
    for _ in range(50):
        log.write("x" * 400)
        log.limit.beat()

    head, _, rest = log.text.partition("\n")
    assert head == "x" * LIMIT
    says = "[gpucoord: the log has reached its limit of 1000 bytes; what follows is left out]\n"
    assert rest == says


def test_its_end_is_kept_as_it_says_why_the_job_ended(log: Log) -> None:
    log.write("x" * 5000)
    log.limit.beat()
    log.write("y" * 80 + "RuntimeError: CUDA out of memory\n")
    log.limit.beat()
    log.write("bye\n")
    log.limit.finish()

    assert "[gpucoord: 3.923 KiB were left out here; this is the end of the log]\n" in log.text
    assert log.text.endswith("yRuntimeError: CUDA out of memory\nbye\n")
    assert len(log.text) < LIMIT + 300


def test_what_was_written_since_the_last_look_counts_too(log: Log) -> None:
    log.write("x" * 900 + "z" * 500)
    log.limit.finish()

    assert log.text.startswith("x" * 900 + "z" * 100 + "\n[gpucoord")
    assert log.text.endswith("of the log]\n" + "z" * 100)
