from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from monitor.runtime.probes.datagrams import Inbox, send


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    made = Inbox(tmp_path, "scheduler")
    yield made  # type: ignore[misc]
    made.close()


def test_a_listener_gets_what_is_sent(inbox: Inbox, tmp_path: Path) -> None:
    assert send(tmp_path, "scheduler", b"7") == 1

    assert select.select([inbox], [], [], 0)[0] == [inbox]
    assert inbox.drain() == [b"7"]
    assert inbox.drain() == []


def test_every_listener_of_the_name_gets_it(inbox: Inbox, tmp_path: Path) -> None:
    second, other = Inbox(tmp_path, "scheduler"), Inbox(tmp_path, "scheduler-yield")

    assert send(tmp_path, "scheduler") == 2

    assert (inbox.drain(), second.drain(), other.drain()) == ([b""], [b""], [])
    second.close()
    other.close()


def test_sending_without_a_listener_is_no_fault(tmp_path: Path) -> None:
    assert send(tmp_path, "scheduler") == 0
    assert send(tmp_path / "missing", "scheduler") == 0


def test_a_full_queue_never_blocks(inbox: Inbox, tmp_path: Path) -> None:
    taken = [send(tmp_path, "scheduler") for _ in range(2000)]

    assert taken[0] == 1
    assert taken[-1] == 0
    assert len(inbox.drain()) == sum(taken)


def test_a_socket_whose_process_is_gone_is_removed(tmp_path: Path) -> None:
    gone = Inbox(tmp_path, "live")
    gone._socket.close()
    assert len(list(tmp_path.glob("live.*.sock"))) == 1

    assert send(tmp_path, "live") == 0

    assert list(tmp_path.glob("live.*.sock")) == []


def test_a_left_over_of_a_process_with_our_pid_is_replaced(tmp_path: Path) -> None:
    (tmp_path / f"live.{os.getpid()}.sock").touch()

    inbox = Inbox(tmp_path, "live")

    assert send(tmp_path, "live") == 1
    inbox.close()


def test_the_folder_may_lie_deeper_than_a_socket_address_can_say(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    inbox = Inbox(deep, "live")

    assert send(deep, "live", b"1") == 1

    inbox.close()
    assert list(deep.iterdir()) == []
    # It should be closed once only: another may have the name by now.
    inbox.close()
