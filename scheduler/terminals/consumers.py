"""WebSocket of an interactive job's terminal: /ws/jobs/ID/terminal/, for its owner.

Binary messages are input and output. {"size": [rows, columns]} sets the window size, {"ack": n}
says how many bytes of output were shown, and {"input": n} how many bytes of input were passed on.
{"notice": text} is a message to the user. Neither side sends more than WINDOW bytes without an
acknowledgement, because the server of WebSockets has no back-pressure.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from channels.db import database_sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.db import DatabaseError
from django.utils import timezone
from msgspec import Struct

from monitor.facts import input_rules
from monitor.facts.accounts import TokenScope, scopes_of
from monitor.owners import rows as tokens
from monitor.pages.hub import (
    FAILED,
    FLOODING,
    INPUT_RECHECK_S,
    MALFORMED,
    SIGNED_OUT,
    TOO_MANY_SOCKETS,
    BrowserLeft,
    Closed,
    LoginCheck,
    MessageBudget,
    Receive,
    Scope,
    Send,
    is_same_user,
    login_check,
    open_sockets,
    unless_left,
)
from scheduler.execution.steps.specs import account_of_jobs
from scheduler.facts.jobs import JobState
from scheduler.models import Attempt, Job
from scheduler.runner.accounts import own_folder
from scheduler.runner.programs.terminal import HEAD, INPUT, SIZE
from scheduler.runner.programs.terminal import WINDOW as WINDOW_SIZE

NOT_ALLOWED, NO_SUCH_JOB, NOT_RUNNING, ENDED, OTHER_HOST = 4403, 4404, 4409, 4410, 4412
WINDOW = 256 * 1024
PIECE = 16 * 1024
MOST_CELLS = 2000
POLL_S = 2.0
# The program of a job listens a moment after the job has started.
LISTENS_WITHIN_S, TRY_AGAIN_S = 20.0, 0.1
AT_ONCE, PER_S = 2000, 500


class Target(Struct, frozen=True):
    """The socket of a job's terminal, and the account of the process that listens."""

    job_id: int
    folder: Path
    name: str
    uid: int


class Login(Struct, frozen=True):
    """How the socket was opened. token: "" = by a session. expires_at: of the token."""

    user: User
    token: str = ""
    expires_at: datetime | None = None


class Refused(Exception):
    """The socket is closed with this code and sentence (at most 123 bytes)."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


async def terminal(scope: Scope, receive: Receive, send: Send) -> None:
    """Connect the owner of an interactive job to its terminal until either side leaves."""
    await receive()
    await send({"type": "websocket.accept"})
    try:
        login, target = await database_sync_to_async(_opened)(scope)
        with open_sockets.one_more(login.user.pk) as is_within_limit:
            if not is_within_limit:
                raise Refused(TOO_MANY_SOCKETS, "You have too many open connections.")
            reader, writer = await _connected(target)
            try:
                session = Session(target, reader, writer, unless_left(send))
                is_allowed = partial(_is_logged_in, scope, login)
                with login_check(login.user.pk, is_allowed, INPUT_RECHECK_S) as check:
                    await session.serve(receive, check)
            finally:
                writer.close()
    except Refused as refused:
        reason = {"code": refused.code, "reason": refused.text}
        await send({"type": "websocket.close", **reason})
    except Closed as closed:
        await send({"type": "websocket.close", "code": closed.code})
    except DatabaseError:
        reason = {"code": FAILED, "reason": "The database does not answer."}
        await send({"type": "websocket.close", **reason})
    except BrowserLeft:
        pass


class Session:
    """One connection between a client and a terminal."""

    def __init__(
        self,
        target: Target,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        send: Send,
    ) -> None:
        self._target = target
        self._reader = reader
        self._writer = writer
        self._send = send
        self._input: list[bytes] = []
        self._has_input = asyncio.Event()
        self._waiting = 0
        self._sent = self._acknowledged = 0
        self._has_room = asyncio.Event()
        self._noticed: object = None

    async def serve(self, receive: Receive, login: LoginCheck) -> None:
        """Raises Refused, Closed or BrowserLeft; returns when the client has left."""
        jobs = (
            self._listen(receive),
            self._pass_on_input(login),
            self._pass_on_output(),
            self._watch(),
            login.watch(),
        )
        tasks = [asyncio.create_task(job) for job in jobs]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _listen(self, receive: Receive) -> None:
        budget = MessageBudget(AT_ONCE, PER_S, monotonic())
        while (event := await receive())["type"] != "websocket.disconnect":
            if not budget.spend(monotonic()):
                raise Closed(FLOODING)
            if data := event.get("bytes"):
                self._queue(INPUT, data)
                self._waiting += len(data)
                if self._waiting > WINDOW:
                    raise Closed(FLOODING)
            else:
                self._hear(event.get("text") or "")

    def _hear(self, text: str) -> None:
        """Raises Closed when the message is malformed."""
        if len(text) > 100:
            raise Closed(MALFORMED)
        try:
            message = input_rules.parse_json(text)
            if "size" in message:
                rows, columns = message["size"]
                size = (min(MOST_CELLS, max(1, int(cells))) for cells in (rows, columns))
                self._queue(SIZE, WINDOW_SIZE.pack(*size))
            else:
                self._acknowledged = min(self._sent, int(message["ack"]))
                self._has_room.set()
        except (ValueError, TypeError, KeyError, OverflowError):
            raise Closed(MALFORMED) from None

    def _queue(self, kind: bytes, content: bytes) -> None:
        """Of sizes in a row only the newest is kept, so that they never pile up."""
        message = HEAD.pack(kind, len(content)) + content
        if kind == SIZE and self._input and self._input[-1][:1] == SIZE:
            self._input[-1] = message
        else:
            self._input.append(message)
        self._has_input.set()

    async def _pass_on_input(self, login: LoginCheck) -> None:
        """Input that waits when the login ends is dropped."""
        passed_on = 0
        while True:
            await self._has_input.wait()
            await login.before_input()
            self._has_input.clear()
            messages, self._input = self._input, []
            amount, self._waiting = self._waiting, 0
            try:
                self._writer.writelines(messages)
                await self._writer.drain()
            except OSError:
                # The output tells why.
                return await asyncio.sleep(LISTENS_WITHIN_S)
            if amount:
                passed_on += amount
                await self._send_json({"input": passed_on})

    async def _pass_on_output(self) -> None:
        while True:
            while self._sent - self._acknowledged >= WINDOW:
                self._has_room.clear()
                await self._has_room.wait()
            try:
                data = await self._reader.read(PIECE)
            except OSError:
                data = b""
            if not data:
                raise Refused(ENDED, "The terminal was closed, or is connected elsewhere.")
            self._sent += len(data)
            await self._send({"type": "websocket.send", "bytes": data})

    async def _watch(self) -> None:
        """Pass on warnings."""
        while True:
            # Without the database the terminal goes on.
            with suppress(DatabaseError):
                await self._look()
            await asyncio.sleep(POLL_S)

    async def _look(self) -> None:
        warned_at, warning = await database_sync_to_async(self._row)()
        if warned_at is not None and warned_at != self._noticed:
            await self._send_json({"notice": warning})
        self._noticed = warned_at

    def _row(self) -> tuple[Any, ...]:
        job = Job.objects.filter(pk=self._target.job_id)
        return job.values_list("idle_warned_at", "idle_warning").first() or (None, "")

    async def _send_json(self, message: dict[str, Any]) -> None:
        await self._send({"type": "websocket.send", "text": json.dumps(message)})


async def _connected(target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises Refused. The job could put a link there, so the listener's account is checked."""
    deadline = monotonic() + LISTENS_WITHIN_S
    while True:
        with suppress(OSError):
            connection = await _connect(target)
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("3i", raw)[1] != target.uid:
                connection.close()
                raise Refused(NOT_ALLOWED, "The process that listens is not of the job's account.")
            return await asyncio.open_unix_connection(sock=connection)
        if monotonic() > deadline or not await database_sync_to_async(_runs)(target.job_id):
            raise Refused(NOT_RUNNING, "The job's terminal does not listen; see the job's log.")
        await asyncio.sleep(TRY_AGAIN_S)


async def _connect(target: Target) -> socket.socket:
    """Raises OSError. The address of a Unix socket is short, so it names the folder's number."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    # The folder may be on a file system that does not answer.
    folder = await asyncio.to_thread(os.open, target.folder, flags)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        address = f"/proc/self/fd/{folder}/{target.name}"
        await asyncio.get_running_loop().sock_connect(connection, address)
    except OSError:
        connection.close()
        raise
    finally:
        os.close(folder)
    return connection


def _opened(scope: Scope) -> tuple[Login, Target]:
    """The login and the terminal. Raises Refused."""
    login = _login(scope)
    if login is None:
        raise Refused(SIGNED_OUT, "Log in, or send a token that may submit jobs.")
    user = login.user
    job_id = int(scope["url_route"]["kwargs"]["pk"])
    job = Job.objects.filter(pk=job_id).first() if job_id < 2**63 else None
    if job is None:
        raise Refused(NO_SUCH_JOB, "There is no such job.")
    if job.owner_id != user.pk:
        raise Refused(NOT_ALLOWED, "Only its owner may connect to a job's terminal.")
    if not job.interactive:
        raise Refused(NOT_ALLOWED, "This job has no terminal; it is not interactive.")
    if job.state == JobState.FINISHED.value:
        raise Refused(ENDED, "The job has ended.")
    attempt = Attempt.objects.filter(job=job, ended_at=None, started_at__isnull=False).first()
    if attempt is None:
        raise Refused(NOT_RUNNING, "The job does not run yet.")
    if attempt.host != settings.CONFIG.node:
        raise Refused(OTHER_HOST, f"The job runs on {attempt.host}; use the server there."[:120])
    return login, target_of(attempt, user)


def target_of(attempt: Attempt, owner: User) -> Target:
    config = settings.CONFIG
    account = account_of_jobs(owner, config.run_as)
    own = own_folder(
        Path(settings.DATA), attempt.job_id, uid=account.uid, chosen=config.checkpoints
    )
    name = own.given_files(attempt.number).terminal.name
    uid = os.geteuid() if account.uid is None else account.uid
    return Target(attempt.job_id, own.given, name, uid)


def _login(scope: Scope) -> Login | None:
    """By the bearer token, else by the session. None: neither allows to submit."""
    headers = dict(scope.get("headers", ()))
    kind, _, text = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if kind.lower() == "bearer":
        return _of_token(text.strip())
    user = scope["user"]
    return Login(user) if user.is_authenticated and user.is_active else None


def _of_token(text: str) -> Login | None:
    row = tokens.find(text, timezone.now())
    if row is None or row.agent_id is not None or TokenScope.SUBMIT not in scopes_of(row.scopes):
        return None
    return Login(row.user, text, row.expires_at)


async def _is_logged_in(scope: Scope, login: Login) -> bool:
    """False after a logout, when the token was revoked, and when the user was deactivated.

    A token that expires does not end a terminal: one of the command line lasts ten minutes.
    """
    if not login.token:
        return await is_same_user(scope)
    if login.expires_at is not None and timezone.now() >= login.expires_at:
        return await User.objects.filter(pk=login.user.pk, is_active=True).aexists()
    return await database_sync_to_async(_of_token)(login.token) is not None


def _runs(job_id: int) -> bool:
    return Job.objects.filter(pk=job_id, state=JobState.RUNNING.value).exists()
