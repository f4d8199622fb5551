"""A process of another account on the port of an instance gets no prompt."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from django.db import transaction

from scheduler.facts.language_models import Instance, InstanceState
from scheduler.language_models.model_proxy import senders
from scheduler.language_models.model_proxy.senders import InstanceFailed, Upstream
from scheduler.language_models.model_services import probes
from scheduler.language_models.model_services.step import ModelStep
from scheduler.models import ModelInstance
from tests.foreign_listener import OTHER, foreign_listener, needs_root
from tests.scheduler.language_models.model_services.model_box import Box, service


@pytest.fixture
def foreign_port() -> Iterator[int]:
    """A port on which an account listens that is no account of gpucoord."""
    with foreign_listener() as other:
        yield other.port


def test_the_own_account_and_a_free_port_are_no_danger() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert not probes.is_taken(port, None)

    assert not probes.is_taken(probes.free_port(), None)


async def test_a_slow_directory_service_holds_up_no_other_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wait(*_: object) -> bool:
        time.sleep(0.5)
        return True

    monkeypatch.setattr(senders, "is_taken", wait)

    async def ask(upstream: Upstream) -> None:
        with suppress(InstanceFailed):
            async with upstream.post(Instance(id=1, url="http://127.0.0.1:1"), "x", b"", 1.0):
                pass

    steps = 0
    async with Upstream() as upstream:
        request = asyncio.create_task(ask(upstream))
        while not request.done():
            await asyncio.sleep(0.01)
            steps += 1
    assert steps > 5


@needs_root
def test_another_account_takes_the_port_unless_it_is_that_of_the_service(foreign_port: int) -> None:
    assert probes.is_taken(foreign_port, None)
    assert probes.is_taken(foreign_port, OTHER - 1)
    assert not probes.is_taken(foreign_port, OTHER)


@needs_root
async def test_the_endpoint_sends_it_nothing(foreign_port: int) -> None:
    url = f"http://127.0.0.1:{foreign_port}/v1"
    async with Upstream() as upstream:
        with pytest.raises(InstanceFailed, match="another account"):
            async with upstream.post(Instance(id=1, url=url), "chat/completions", b"{}", 5):
                pass


@needs_root
@pytest.mark.django_db
@pytest.mark.usefixtures("data")
def test_an_instance_does_not_become_ready_by_the_answer_of_another_account(
    foreign_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    box = Box()
    service(min_instances=1)
    box.step()
    ModelInstance.objects.update(port=foreign_port)

    for _ in range(3):
        box.step()
    # Each slice of the loop has a new step.
    ModelStep(transaction.atomic, "gpubox").step(box.now)

    states = set(ModelInstance.objects.values_list("state", flat=True))
    assert probes.answers(f"http://127.0.0.1:{foreign_port}/")
    assert states == {InstanceState.BOOTING.value}
    assert caplog.text.count("Another account listens") == 1
    reason = ModelInstance.objects.get().reason
    assert reason == f"Another account listens on its port {foreign_port}."
