from __future__ import annotations

from pathlib import Path

import pytest
from django.db import transaction

from monitor.runtime.rows import wakeups
from monitor.runtime.rows.wakeups import Listener


@pytest.mark.django_db(transaction=True)
def test_a_wake_up_waits_for_the_commit(data: Path) -> None:
    with Listener("scheduler") as listener:
        with transaction.atomic():
            wakeups.wake("scheduler", b"1")
            assert listener.drain() == []

        assert listener.drain() == [b"1"]


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_transaction_sends_no_wake_up(data: Path) -> None:
    with Listener("scheduler") as listener:
        with transaction.atomic():
            wakeups.wake("scheduler")
            transaction.set_rollback(True)

        assert listener.drain() == []


@pytest.mark.django_db(transaction=True)
def test_outside_a_transaction_it_goes_at_once(data: Path) -> None:
    with Listener("live") as listener:
        wakeups.wake("live", b"42")

        assert listener.drain() == [b"42"]


@pytest.mark.django_db(transaction=True)
def test_it_never_raises(data: Path) -> None:
    data.rmdir()

    wakeups.wake("scheduler")

    assert not data.exists()


def test_the_sockets_lie_in_the_data_folder(data: Path) -> None:
    with Listener("live"):
        assert [p.name.split(".")[0] for p in wakeups.socket_folder().iterdir()] == ["live"]

    assert list(wakeups.socket_folder().iterdir()) == []
