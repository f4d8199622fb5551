"""Models whose instances are on another host: pages, REST and the endpoint name that host."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.facts.readings import JoiningHost
from monitor.gpus.rows import hosts
from scheduler.language_models.model_proxy.api.book import Board
from scheduler.language_models.model_proxy.api.exchange import Exchange, Outlet
from scheduler.language_models.model_proxy.policy import Caller, ModelRequest, Refused
from scheduler.language_models.model_proxy.rows import SituationReader
from scheduler.language_models.model_proxy.senders import Upstream
from scheduler.models import ModelInstance, ModelService

pytestmark = pytest.mark.django_db
AsUser = Callable[[User], Client]
SENTENCE = (
    "tiny runs on west. Send requests to the endpoint there,"
    " which http://west.example:8000/models/tiny/ names."
)


@pytest.fixture
def tiny() -> ModelService:
    """Ready on the host west, which may have one instance more."""
    now = timezone.now()
    west = JoiningHost(
        name="west", instance="w", boot_id="b", version="1",
        address="http://west.example:8000/", profile="server",
    )  # fmt: skip
    hosts.register(west, now)
    service = ModelService.objects.create(name="tiny", argv=["serve"], max_instances=2)
    made = {"service": service, "host": "west", "since": now, "port": 9000}
    ModelInstance.objects.create(state="ready", **made)
    return service


def board_of(host: str) -> Board:
    board = Board()
    board.update(SituationReader(host).read((), timezone.now()))
    return board


def test_pages_and_rest_say_which_host_runs_a_model(
    tiny: ModelService, alice: User, as_user: AsUser
) -> None:
    browser = as_user(alice)

    (line,) = browser.get("/api/models/").json()["models"]
    assert (line["elsewhere"], line["instances"][0]["host"]) == (SENTENCE, "west")
    assert SENTENCE in browser.get("/models/tiny/").content.decode()
    assert "on west: ready" in browser.get("/models/").content.decode()


@pytest.mark.parametrize("state", ["ready", "booting"])
def test_an_instance_here_or_one_that_may_come_here_takes_requests(
    tiny: ModelService, alice: User, as_user: AsUser, settings: Any, state: str
) -> None:
    host = settings.CONFIG.node if state == "ready" else ""
    ModelInstance.objects.create(service=tiny, host=host, since=timezone.now(), state=state)

    (line,) = as_user(alice).get("/api/models/").json()["models"]
    assert line["elsewhere"] == ""
    assert "Send requests" not in as_user(alice).get("/models/tiny/").content.decode()


def test_the_endpoint_here_passes_requests_on_if_it_reaches_the_other_one(
    tiny: ModelService, alice: User, as_user: AsUser
) -> None:
    hosts.set_models_address("west", "http://west.example:8001")

    (line,) = as_user(alice).get("/api/models/").json()["models"]
    service = board_of("east").service("tiny")

    assert line["elsewhere"] == ("tiny runs on west. The endpoint of this host passes requests on.")
    assert service is not None
    assert [(one.host, one.url) for one in service.endpoints] == [
        ("west", "http://west.example:8001/v1")
    ]


def test_requests_wait_for_the_endpoint_of_a_host_that_has_just_got_the_model(
    tiny: ModelService,
) -> None:
    ready_at = timezone.now()
    ModelInstance.objects.update(ready_at=ready_at)
    reader = SituationReader("east")
    said = {}
    for seconds in (0, 14, 16):
        board = Board()
        board.update(reader.read((), ready_at + timedelta(seconds=seconds)))
        service = board.service("tiny")
        assert service is not None
        said[seconds] = service.elsewhere

    assert said == {0: "", 14: "", 16: SENTENCE}


def test_a_host_without_pages_for_others_is_named_all_the_same(
    tiny: ModelService, alice: User, as_user: AsUser
) -> None:
    hosts.forget("west")

    (line,) = as_user(alice).get("/api/models/").json()["models"]
    assert line["elsewhere"] == (
        "tiny runs on west. Send requests to the endpoint for models of that host."
    )


async def refused_by(board: Board) -> Refused:
    """The endpoint's answer to a request that may wait for a minute."""

    async def send(message: object) -> None:
        raise AssertionError(f"it answers {message}")

    async with Upstream() as upstream:
        exchange = Exchange(board, upstream, Outlet(send), wait_s=60.0)
        request = ModelRequest(path="chat/completions", model="tiny", body=b"{}", streams=True)
        with pytest.raises(Refused) as refused:
            await exchange.run(request, Caller(user_id=1, name="alice"))
    return refused.value


def test_the_endpoint_refuses_at_once_and_starts_no_further_instance(tiny: ModelService) -> None:
    board = board_of("east")

    refused = async_to_sync(refused_by)(board)

    assert (refused.status, refused.code) == (421, "model_on_other_host")
    assert refused.message == SENTENCE
    _, uses, boots = board.take_changes()
    assert (uses, boots) == ([], [])


def test_the_host_that_has_the_instance_takes_the_request(tiny: ModelService) -> None:
    service = board_of("west").service("tiny")

    assert service is not None
    assert service.elsewhere == ""
    assert len(service.ready) == 1
