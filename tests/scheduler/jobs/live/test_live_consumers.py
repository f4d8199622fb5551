from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.test import Client

from gpucoord_site.asgi import application
from monitor.pages import hub as live_socket
from monitor.pages.hub import FAILED, FLOODING, MALFORMED, TOO_MANY_SOCKETS, OpenSockets
from monitor.runtime.rows.item_isolation import FaultLog
from scheduler.jobs import consumers
from scheduler.jobs.rows import changes as job_queue
from scheduler.models import Job
from tests import jobs_made
from tests.builders import NOW
from tests.processes.attempts import wait_for
from tests.sockets import MALFORMED_TEXTS, Socket

pytestmark = pytest.mark.django_db(transaction=True)
Open = Callable[..., Awaitable[Any]]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    monkeypatch.setattr(consumers, "QUIET_S", 0.06)
    monkeypatch.setattr(consumers, "POLL_S", 0.2)


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """await opened(alice, job): the socket of her page, as her browser opens it."""
    sockets = []

    async def open_socket(
        user: User | None, job: Job | int, query: str = "", origin: str = "http://localhost"
    ) -> Any:
        headers = [(b"host", b"localhost"), (b"origin", origin.encode())]
        if user is not None:
            headers.append((b"cookie", (await sync_to_async(_cookie)(user)).encode()))
        pk = job if isinstance(job, int) else job.pk
        socket = Socket(application, f"/ws/jobs/{pk}/{query}", headers=headers)
        socket.accepted, _ = await socket.connect()
        sockets.append(socket)
        return socket

    yield open_socket
    for socket in sockets:
        await socket.disconnect()


def _cookie(user: User) -> str:
    client = Client()
    client.force_login(user, "django.contrib.auth.backends.ModelBackend")
    return f"gpucoord_session={client.cookies['gpucoord_session'].value}"


async def said(socket: Any) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(await socket.receive_from())
    return message


async def log_until(socket: Any, end: str) -> str:
    """The text of the log until it ends so; the page acknowledges all of it."""
    text = ""
    while not text.endswith(end):
        message = await said(socket)
        text += message.get("log", "")
        if "n" in message:
            await socket.send_to(json.dumps({"ack": message["n"]}))
    return text


@pytest.fixture
def job(alice: User) -> Job:
    return jobs_made.running(alice)


async def test_it_sends_the_state_and_then_the_log(
    alice: User, job: Job, data: Path, opened: Open
) -> None:
    jobs_made.write_log(data, job, b"hello\n")
    page = await opened(alice, job)

    first = await said(page)
    assert (first["state"], first["ended"]) == ("running", False)
    assert "running" in first["job"]
    assert await said(page) == {"n": 1, "log": "hello\n", "to": 6}


async def test_it_sends_what_is_written_later(
    alice: User, job: Job, data: Path, opened: Open
) -> None:
    page = await opened(alice, job)
    await said(page)

    jobs_made.write_log(data, job, b"one\n")
    assert await log_until(page, "one\n") == "one\n"
    jobs_made.write_log(data, job, b"\x1b[31m\x1b[2Ktwo\xff\n")
    assert await log_until(page, "\n") == "\x1b[31mtwo\ufffd\n"


async def test_it_goes_on_where_the_page_is(
    alice: User, job: Job, data: Path, opened: Open
) -> None:
    jobs_made.write_log(data, job, b"0123456789")
    page = await opened(alice, job, "?attempt=1&from=4")
    await said(page)

    assert await said(page) == {"n": 1, "log": "456789", "to": 10}


async def test_a_change_of_the_job_arrives(alice: User, job: Job, opened: Open) -> None:
    page = await opened(alice, job)
    await said(page)

    await sync_to_async(job_queue.request_cancel)(job.pk, "alice", NOW)
    assert (await said(page))["state"] == "stopping"

    await sync_to_async(jobs_made.end)(job, "cancelled")
    last = await said(page)
    assert (last["state"], last["ended"]) == ("finished", True)
    assert "cancelled" in last["job"]


async def test_a_big_log_begins_with_its_end(
    alice: User, job: Job, data: Path, opened: Open
) -> None:
    jobs_made.write_log(data, job, b"x" * 1_000_000 + b"end")
    page = await opened(alice, job)
    await said(page)

    message = await said(page)
    assert message["skipped"] == 1_000_003 - consumers.LAST
    assert message["log"].endswith("xend")


async def test_a_page_that_says_nothing_gets_no_more_and_skips_ahead(
    alice: User, job: Job, data: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "WINDOW", 1)
    page = await opened(alice, job, "?attempt=1&from=0")
    await said(page)
    jobs_made.write_log(data, job, b"first")
    assert (await said(page))["log"] == "first"

    jobs_made.write_log(data, job, b"y" * (consumers.BUFFER_BYTES * 2) + b"last")
    assert await page.receive_nothing(0.5)

    await page.send_to(json.dumps({"ack": 1}))
    assert (await said(page))["skipped"] > consumers.BUFFER_BYTES / 2


async def test_a_log_that_is_cut_at_its_limit_goes_on_from_there(
    alice: User, job: Job, data: Path, opened: Open
) -> None:
    log = jobs_made.write_log(data, job, b"kept, left out")
    page = await opened(alice, job)
    await said(page)
    assert await log_until(page, "out") == "kept, left out"

    os.truncate(log, 4)
    tail = consumers.tails(consumers.load_views)._tails[job.pk]
    await asyncio.to_thread(wait_for, lambda: tail.end == 4)
    jobs_made.write_log(data, job, b" | more")
    assert await log_until(page, "more") == " | more"


async def test_the_end_of_a_log_that_was_cut_is_shown_once_the_job_is_over(
    alice: User, job: Job, data: Path, opened: Open
) -> None:
    log = jobs_made.write_log(data, job, b"kept, left out, and so on")
    page = await opened(alice, job)
    await said(page)
    await log_until(page, "so on")

    os.truncate(log, 9)
    tail = consumers.tails(consumers.load_views)._tails[job.pk]
    await asyncio.to_thread(wait_for, lambda: tail.end == 9)
    os.truncate(log, 4)
    jobs_made.write_log(data, job, b" the end")
    await sync_to_async(jobs_made.end)(job, "failed")
    while "anew" not in (message := await said(page)):
        pass
    text = message["log"]
    assert text == "kept the end" or text + await log_until(page, "end") == "kept the end"


async def test_a_new_attempt_begins_anew(alice: User, job: Job, data: Path, opened: Open) -> None:
    jobs_made.write_log(data, job, b"old")
    page = await opened(alice, job, "?attempt=7&from=99")
    await said(page)

    assert (await said(page))["anew"] == 1
    assert await log_until(page, "old") == "old"


async def test_many_pages_share_one_reader(
    alice: User, job: Job, data: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = [await opened(alice, job) for _ in range(5)]
    for page in pages:
        await said(page)
    reads = []
    monkeypatch.setattr(consumers, "read", lambda *a: reads.append(a) or _read(*a))
    jobs_made.write_log(data, job, b"once\n")

    assert [await log_until(page, "once\n") for page in pages] == ["once\n"] * 5
    assert len(reads) == 1


_read = consumers.read


async def test_without_pages_nothing_is_watched(alice: User, job: Job, opened: Open) -> None:
    page = await opened(alice, job)
    await said(page)
    await page.disconnect()

    tails = consumers.tails(consumers.load_views)
    assert (tails._tails, tails._task) == ({}, None)


async def test_a_stranger_sees_the_state_but_no_log(
    bob: User, job: Job, data: Path, opened: Open
) -> None:
    jobs_made.write_log(data, job, b"hidden")
    page = await opened(bob, job, "?attempt=1&from=0")

    assert (await said(page))["state"] == "running"
    assert await page.receive_nothing(0.4)


async def test_an_operator_reads_the_log(root: User, job: Job, data: Path, opened: Open) -> None:
    jobs_made.write_log(data, job, b"hello")

    assert await log_until(await opened(root, job), "hello")


async def test_who_is_not_logged_in_is_told_so(job: Job, opened: Open) -> None:
    page = await opened(None, job)

    assert await page.receive_output() == {"type": "websocket.close", "code": 4401}


@pytest.mark.parametrize("pk", [999, 2**70])
async def test_a_job_that_is_not_there_is_said_so(alice: User, opened: Open, pk: int) -> None:
    page = await opened(alice, pk)

    assert await page.receive_output() == {"type": "websocket.close", "code": 4404}


async def test_a_page_of_another_site_is_refused(alice: User, job: Job, opened: Open) -> None:
    page = await opened(alice, job, origin="http://evil.example")

    assert not page.accepted


async def test_who_loses_the_right_is_closed_out(
    alice: User, job: Job, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_socket, "RECHECK_S", 0.05)
    page = await opened(alice, job)
    await said(page)
    await User.objects.filter(pk=alice.pk).aupdate(is_active=False)

    assert await page.receive_output() == {"type": "websocket.close", "code": 4401}


@pytest.mark.parametrize("text", MALFORMED_TEXTS)
async def test_a_malformed_message_closes_the_socket(
    alice: User, job: Job, opened: Open, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    page = await opened(alice, job)
    await said(page)
    await page.send_to(text)

    assert await page.receive_output() == {"type": "websocket.close", "code": MALFORMED}
    assert [record for record in caplog.records if record.levelname != "INFO"] == []


async def test_a_flooding_page_is_closed(alice: User, job: Job, opened: Open) -> None:
    page = await opened(alice, job)
    await said(page)
    for _ in range(1000):
        await page.send_to('{"ack": 0}')

    assert await page.receive_output() == {"type": "websocket.close", "code": FLOODING}


async def test_a_feed_that_fails_is_logged_and_its_socket_closed(
    alice: User,
    job: Job,
    data: Path,
    opened: Open,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise PermissionError("the log can't be read")

    monkeypatch.setattr(live_socket, "_faults", FaultLog(live_socket.logger))
    monkeypatch.setattr(consumers.LogTail, "piece", fail)
    jobs_made.write_log(data, job, b"hello")
    page = await opened(alice, job)
    assert (await said(page))["state"] == "running"

    assert await page.receive_output() == {"type": "websocket.close", "code": FAILED}
    assert "the log can't be read" in caplog.text


async def test_a_user_has_a_limited_number_of_sockets(
    alice: User, bob: User, job: Job, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_socket, "open_sockets", OpenSockets(2))
    pages = [await opened(alice, job) for _ in range(3)]
    other = await opened(bob, job)

    assert await pages[2].receive_output() == {"type": "websocket.close", "code": TOO_MANY_SOCKETS}
    assert (await said(pages[0]))["state"] == (await said(other))["state"] == "running"

    await pages[0].disconnect()
    assert (await said(await opened(alice, job)))["state"] == "running"
