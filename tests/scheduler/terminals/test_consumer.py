"""The WebSocket of a terminal: its rights, its limits, and the account of the listener."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.db import OperationalError
from django.utils import timezone

from gpucoord_site.accounts import sessions
from gpucoord_site.asgi import application
from monitor.facts.accounts import TokenScope
from monitor.models import ApiToken
from monitor.owners import rows as tokens
from monitor.pages.hub import FAILED, FLOODING, MALFORMED, SIGNED_OUT
from scheduler.models import Job
from scheduler.runner.accounts import Account
from scheduler.runner.programs.terminal import HEAD, INPUT, SIZE, listen
from scheduler.terminals import consumers
from scheduler.terminals.consumers import ENDED, NO_SUCH_JOB, NOT_ALLOWED, NOT_RUNNING, OTHER_HOST
from tests import jobs_made
from tests.sockets import Socket

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    monkeypatch.setattr(consumers, "LISTENS_WITHIN_S", 0.2)
    monkeypatch.setattr(consumers, "POLL_S", 0.1)
    monkeypatch.setattr(consumers, "INPUT_RECHECK_S", 0.1)
    # The terminal listens as the account of these tests.
    own = Account("me", "/")
    monkeypatch.setattr(consumers, "account_of_jobs", lambda owner, run_as: own)


@pytest.fixture
def job(alice: User) -> Job:
    job = jobs_made.running(alice, interactive=True)
    job.attempts.update(host=settings.CONFIG.node)
    return job


@pytest.fixture
def listener(job: Job, alice: User) -> Iterator[socket.socket]:
    """Listens where the job's terminal would."""
    target = consumers.target_of(job.attempts.get(), alice)
    target.folder.mkdir(parents=True)
    with listen(str(target.folder), target.name) as listener:
        listener.setblocking(True)
        listener.settimeout(30)
        yield listener


def headers(token: str, origin: str = "http://localhost") -> list[tuple[bytes, bytes]]:
    return [
        (b"host", b"localhost"),
        (b"origin", origin.encode()),
        (b"authorization", f"Bearer {token}".encode()),
    ]


def token(user: User, *scopes: TokenScope, lives: timedelta | None = None) -> str:
    wanted = scopes or (TokenScope.SUBMIT,)
    return tokens.create_token(user, timezone.now(), scopes=wanted, lives=lives)[1]


async def opened(
    user: User, job_id: int, *scopes: TokenScope, lives: timedelta | None = None
) -> Any:
    text = await sync_to_async(token)(user, *scopes, lives=lives)
    page = Socket(application, f"/ws/jobs/{job_id}/terminal/", headers=headers(text))
    await page.connect()
    return page


@pytest.fixture
async def page(alice: User, job: Job, listener: socket.socket) -> AsyncIterator[Any]:
    page = await opened(alice, job.pk)
    yield page
    await page.disconnect()


def received(client: socket.socket) -> tuple[bytes, bytes]:
    client.settimeout(30)
    kind, length = HEAD.unpack(client.recv(HEAD.size, socket.MSG_WAITALL))
    return kind, client.recv(length, socket.MSG_WAITALL)


async def text_of(page: Any) -> dict[str, Any]:
    while not (event := await page.receive_output()).get("text"):
        assert event["type"] != "websocket.close", event
    message: dict[str, Any] = json.loads(event["text"])
    return message


async def test_input_output_and_size_are_passed_on(page: Any, listener: socket.socket) -> None:
    client, _ = await asyncio.to_thread(listener.accept)
    with client:
        await page.send_to(bytes_data=b"ls\r")
        assert await asyncio.to_thread(received, client) == (INPUT, b"ls\r")
        assert await text_of(page) == {"input": 3}
        await page.send_to('{"size": [24, 99999]}')
        assert (await asyncio.to_thread(received, client))[0] == SIZE
        client.sendall(b"\xffout")
        assert (await page.receive_output())["bytes"] == b"\xffout"
    assert (await page.closed())["code"] == ENDED


async def test_a_warning_is_shown(page: Any, listener: socket.socket, job: Job) -> None:
    rows = Job.objects.filter(pk=job.pk)
    await sync_to_async(rows.update)(idle_warned_at=timezone.now(), idle_warning="It ends soon.")

    assert await text_of(page) == {"notice": "It ends soon."}


async def test_a_client_that_shows_nothing_gets_no_more(
    page: Any, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "WINDOW", 4)
    client, _ = await asyncio.to_thread(listener.accept)
    with client:
        client.sendall(b"12345")
        assert (await page.receive_output())["bytes"] == b"12345"
        client.sendall(b"6")
        assert await page.receive_nothing(0.3)
        await page.send_to('{"ack": 5}')
        assert (await page.receive_output())["bytes"] == b"6"


@pytest.mark.parametrize(
    "text",
    [
        "no json", "[]", '{"size": 1}', '{"size": ["a", 2]}', "x" * 200,
        '{"ack": 1e999}', '{"size": [1e999, 2]}', '{"ack": NaN}',
    ],
)  # fmt: skip
async def test_malformed_messages_close_it(page: Any, text: str) -> None:
    await page.send_to(text)

    assert (await page.closed())["code"] == MALFORMED


async def test_input_that_cannot_be_passed_on_closes_it(
    page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "WINDOW", 10)
    await page.send_to(bytes_data=b"x" * 11)

    assert (await page.closed())["code"] == FLOODING


@pytest.fixture
def _rarely_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a wake-up ends a terminal."""
    monkeypatch.setattr(consumers, "INPUT_RECHECK_S", 600.0)


def deactivate(user: User) -> None:
    user.is_active = False
    user.save()


@pytest.mark.usefixtures("_rarely_checked")
@pytest.mark.parametrize("lives", [timedelta(hours=1), timedelta(seconds=0.5)])
async def test_deactivating_the_user_ends_the_terminal_at_once(
    alice: User, job: Job, listener: socket.socket, lives: timedelta
) -> None:
    page = await opened(alice, job.pk, lives=lives)
    await asyncio.sleep(0.6)
    await sync_to_async(deactivate)(alice)

    assert (await page.closed())["code"] == SIGNED_OUT


@pytest.mark.usefixtures("_rarely_checked")
async def test_revoking_the_token_ends_its_terminal_at_once(page: Any, alice: User) -> None:
    await sync_to_async(ApiToken.objects.filter(user=alice).delete)()

    assert (await page.closed())["code"] == SIGNED_OUT


@pytest.mark.usefixtures("_rarely_checked", "listener")
async def test_a_token_that_is_revoked_while_its_terminal_opens_ends_it(
    alice: User, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = consumers._connected

    async def revoked_meanwhile(target: consumers.Target) -> Any:
        await ApiToken.objects.filter(user=alice).adelete()
        return await original(target)

    monkeypatch.setattr(consumers, "_connected", revoked_meanwhile)

    assert (await refusal(alice, job.pk))[0] == SIGNED_OUT


@pytest.mark.usefixtures("_rarely_checked")
async def test_revoking_another_token_leaves_it_open(page: Any, alice: User) -> None:
    text = await sync_to_async(token)(alice)
    await sync_to_async(ApiToken.objects.filter(prefix=text[:12]).delete)()

    assert await page.receive_nothing(0.5)


async def test_input_is_not_passed_on_after_a_revocation_whose_wake_up_was_lost(
    page: Any, listener: socket.socket, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "wake", lambda *_: None)
    client, _ = await asyncio.to_thread(listener.accept)
    with client:
        await page.send_to(bytes_data=b"before\r")
        assert await asyncio.to_thread(received, client) == (INPUT, b"before\r")
        await sync_to_async(ApiToken.objects.filter(user=alice).delete)()
        await asyncio.sleep(0.1)
        await page.send_to(bytes_data=b"after\r")

        assert (await page.closed())["code"] == SIGNED_OUT
        assert await asyncio.to_thread(client.recv, 1) == b""


async def test_a_token_that_expires_leaves_its_terminal_open(
    alice: User, job: Job, listener: socket.socket
) -> None:
    page = await opened(alice, job.pk, lives=timedelta(seconds=1))

    assert await page.receive_nothing(1.5)
    await page.disconnect()


async def test_a_terminal_goes_on_while_the_database_is_away(
    page: Any, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise OperationalError("the database is away")

    monkeypatch.setattr(consumers.Session, "_row", fail)
    client, _ = await asyncio.to_thread(listener.accept)
    with client:
        await asyncio.sleep(0.3)
        client.sendall(b"still here")
        assert (await page.receive_output())["bytes"] == b"still here"


async def test_a_database_that_is_away_closes_a_new_terminal_with_a_sentence(
    alice: User, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise OperationalError("the database is away")

    monkeypatch.setattr(consumers, "_opened", fail)

    assert await refusal(alice, job.pk) == (FAILED, "The database does not answer.")


async def refusal(user: User, job_id: int, *scopes: TokenScope) -> tuple[int, str]:
    page = await opened(user, job_id, *scopes)
    event = await page.closed()
    return event["code"], event.get("reason", "")


async def test_only_the_owner_may_connect(root: User, job: Job) -> None:
    assert (await refusal(root, job.pk))[0] == NOT_ALLOWED


async def test_a_token_that_only_reads_is_refused(alice: User, job: Job) -> None:
    assert (await refusal(alice, job.pk, TokenScope.READ))[0] == SIGNED_OUT


async def test_a_listener_of_another_account_is_refused(
    alice: User, job: Job, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = consumers.target_of

    def of_another(*arguments: Any) -> consumers.Target:
        target = original(*arguments)
        return consumers.Target(target.job_id, target.folder, target.name, target.uid + 1)

    monkeypatch.setattr(consumers, "target_of", of_another)

    code, text = await refusal(alice, job.pk)
    assert (code, "job's account" in text) == (NOT_ALLOWED, True)


async def test_a_terminal_that_does_not_listen_is_reported(alice: User, job: Job) -> None:
    assert (await refusal(alice, job.pk))[0] == NOT_RUNNING


async def test_other_jobs_have_no_terminal(alice: User) -> None:
    plain = await sync_to_async(jobs_made.running)(alice)
    waits = await sync_to_async(jobs_made.waiting)(alice, interactive=True)
    ended = await sync_to_async(jobs_made.running)(alice, on=(1,), interactive=True)
    await sync_to_async(jobs_made.end)(ended)

    assert (await refusal(alice, plain.pk))[0] == NOT_ALLOWED
    assert (await refusal(alice, waits.pk))[0] == NOT_RUNNING
    assert (await refusal(alice, ended.pk))[0] == ENDED
    assert (await refusal(alice, 10**17))[0] == NO_SUCH_JOB


async def test_a_job_of_another_host_says_where_it_runs(alice: User, job: Job) -> None:
    await sync_to_async(job.attempts.update)(host="gpubox2")

    code, text = await refusal(alice, job.pk)
    assert (code, "gpubox2" in text) == (OTHER_HOST, True)


async def test_a_page_of_another_site_is_refused(alice: User, job: Job) -> None:
    text = await sync_to_async(token)(alice)
    given = headers(text, "http://elsewhere.example")
    page = Socket(application, f"/ws/jobs/{job.pk}/terminal/", headers=given)

    assert (await page.connect())[0] is False
