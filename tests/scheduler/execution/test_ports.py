"""Ports of jobs: no two open attempts of a host share one."""

from __future__ import annotations

import socket

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError

from scheduler.execution import probes as probe
from scheduler.execution.policy import BoundsPolicy, port_blocks
from scheduler.execution.steps import specs
from scheduler.models import Attempt
from tests import jobs_made

SMALL = BoundsPolicy(ports=4, first_port=20_000, last_port=20_011)


def attempt_of(owner: User) -> Attempt:
    return jobs_made.running(owner, on=()).attempts.get()


def test_blocks_begin_anywhere_and_overlap_with_nothing_taken() -> None:
    taken = [range(20_006, 20_007), range(32_768, 61_000)]

    assert [block.start for block in port_blocks(SMALL, [], start=4)] == [20_004, 20_008, 20_000]
    assert [block.start for block in port_blocks(SMALL, taken, start=0)] == [20_000, 20_008]
    assert list(port_blocks(SMALL, [range(1, 65_536)], start=0)) == []
    assert SMALL.conflicts() == {}
    assert BoundsPolicy(ports=13, first_port=20_000, last_port=20_011).conflicts()


@pytest.mark.django_db
def test_each_attempt_has_its_own_block_until_it_ends(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "are_free", lambda _block: True)
    monkeypatch.setattr(probe, "ephemeral", lambda: range(20_008, 20_100))
    first, second, third = (attempt_of(alice) for _ in range(3))

    blocks = [specs.assigned(attempt, SMALL) for attempt in (first, second)]

    assert {block.start for block in blocks} == {20_000, 20_004}
    # After a restart of the service, the row says it.
    again = Attempt.objects.get(pk=first.pk)
    assert specs.assigned(again, SMALL) == blocks[0]
    with pytest.raises(specs.NoPorts, match="20000 to 20011"):
        specs.assigned(third, SMALL)
    jobs_made.end(first.job, "succeeded")
    assert specs.assigned(third, SMALL) == blocks[0]


@pytest.mark.django_db
def test_the_database_refuses_a_port_that_another_open_attempt_has(alice: User) -> None:
    first, second = attempt_of(alice), attempt_of(alice)
    Attempt.objects.filter(pk=first.pk).update(port=20_000, ports=4)

    assert not specs._store(second, range(20_000, 20_004))
    with pytest.raises(IntegrityError):
        Attempt.objects.filter(pk=second.pk).update(port=20_000)


@pytest.mark.django_db
def test_no_ports_if_operators_say_so(alice: User) -> None:
    block = specs.assigned(attempt_of(alice), BoundsPolicy(ports=0))

    assert specs.with_variables({"A": "1"}, block) == {"A": "1"}


def test_a_port_on_which_a_program_listens_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not probe.are_free(range(port, port + 1))
    assert probe.ephemeral().start > 0


def test_variables_of_torch_are_those_of_the_user_if_there_are_some() -> None:
    env = specs.with_variables({"MASTER_PORT": "7", "A": "1"}, range(20_000, 20_008))

    assert env == {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "7",
        "PET_MASTER_PORT": "20000",
        "A": "1",
        "GPUCOORD_PORT": "20000",
        "GPUCOORD_PORTS": "8",
    }
