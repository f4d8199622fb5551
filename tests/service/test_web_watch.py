from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from gpucoord_site.service import task_queue
from gpucoord_site.service.task_queue import (
    ASK_EVERY_S,
    MOST_UNANSWERED,
    PATIENCE_S,
    START_S,
    WebWatch,
)


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(task_queue, "time", made)
    return made


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(10)
        yield made


@pytest.fixture
def watch(clock: Clock, listening: socket.socket) -> Iterator[WebWatch]:
    """Of a process that uses CPU time."""
    made = WebWatch(listening, cpu_of=lambda _pid: int(10 * clock.now))
    yield made
    # Closes what it has open.
    made.starts()


def _after(watch: WebWatch, clock: Clock, seconds: float) -> float | None:
    """Seconds until it counts as stuck; None = it does not within these."""
    for tenth in range(int(seconds * 10)):
        clock.now += 0.1
        if watch.is_stuck(1):
            return tenth / 10
    return None


def _answer(listening: socket.socket) -> bytes:
    connection, _ = listening.accept()
    with connection:
        asked = connection.recv(1000)
        connection.sendall(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
    return asked


def _let_answer(watch: WebWatch, clock: Clock, listening: socket.socket) -> bytes:
    clock.now += ASK_EVERY_S
    watch.is_stuck(1)
    watch.is_stuck(1)
    asked = _answer(listening)
    assert not watch.is_stuck(1)
    return asked


def test_it_asks_for_healthz_and_any_answer_counts(
    watch: WebWatch, clock: Clock, listening: socket.socket
) -> None:
    asked = _let_answer(watch, clock, listening)

    assert asked.startswith(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")


def test_three_asks_without_an_answer_mean_that_it_is_stuck(
    watch: WebWatch, clock: Clock, listening: socket.socket
) -> None:
    _let_answer(watch, clock, listening)

    found = _after(watch, clock, 60)
    assert found == pytest.approx(ASK_EVERY_S + MOST_UNANSWERED * PATIENCE_S, abs=0.5)
    assert found <= 15


def test_one_answer_among_them_is_enough(
    watch: WebWatch, clock: Clock, listening: socket.socket
) -> None:
    _let_answer(watch, clock, listening)
    assert _after(watch, clock, 10) is None
    with listening.accept()[0], listening.accept()[0] as second:
        second.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        assert not watch.is_stuck(1)
    assert _after(watch, clock, 10) is None


def test_a_process_that_has_just_started_has_a_minute(
    watch: WebWatch, clock: Clock, listening: socket.socket
) -> None:
    found = _after(watch, clock, 200)
    assert found == pytest.approx(START_S, abs=PATIENCE_S + 1)


def test_a_process_that_freezes_while_it_starts_is_stuck_within_15_s(
    clock: Clock, listening: socket.socket
) -> None:
    frozen_at = clock.now + 2
    watch = WebWatch(listening, cpu_of=lambda _pid: int(10 * min(clock.now, frozen_at)))
    found = _after(watch, clock, 60)
    watch.starts()

    assert found is not None
    assert found - 2 <= 15


def test_a_socket_on_all_addresses_is_asked_on_loopback() -> None:
    assert task_queue._reachable(("0.0.0.0", 8000)) == ("127.0.0.1", 8000)
    assert task_queue._reachable(("::", 8000, 0, 0)) == ("::1", 8000)
    assert task_queue._reachable(("192.0.2.7", 8000)) == ("192.0.2.7", 8000)
