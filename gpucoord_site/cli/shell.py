"""`gpucoord shell` and `notebook`: interactive jobs with a terminal, as ssh gives one."""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import socket
import sys
import termios
import threading
import time
import tty
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from gpucoord_site.cli import connection, submit
from gpucoord_site.cli.client import Client, NotReachable, RequestFailed, connected
from gpucoord_site.cli.commands import CANCELLED, arg, command, complain, count, show
from monitor.facts import input_rules
from monitor.facts.input_rules import escaped

Json = dict[str, Any]
# The account's shell, as the server knows it. A remote one reads the profile for its PATH.
LOCAL_SHELL, REMOTE_SHELL = 'exec "${SHELL:-/bin/sh}"', 'exec "${SHELL:-/bin/sh}" -l'
# Of the terminal here, for the programs there.
PASSED_ON = ("TERM", "COLORTERM")
SHORTEST_S, LONGEST_S = 0.1, 1.0
RECORDED_WITHIN_S = 10.0
ARGUMENTS = tuple(submit.job_arguments(leaves_out=("array", "array_limit", "script")))
# Of options that the interactive commands do not have.
DEFAULTS = {"detach": False, "script": None}
NO_TERMINAL = "gpucoord shell needs a terminal. Without one, use: gpucoord run -- COMMAND"
EPILOG = """\
The job has a terminal: window size, Ctrl-C and Ctrl-Z work as with ssh. The limits and quotas of
jobs hold. It is cancelled when its GPUs stay idle, after a warning. Enter and then ~. leaves it
running (inside ssh ~~. because ssh takes ~. itself); `gpucoord shell --attach JOB` connects again,
within 5 minutes unless operators changed it.
"""


@command(
    "shell",
    "Run your shell, or a command, as a job with a terminal.",
    *ARGUMENTS,
    connection.JSON,
    arg("--attach JOB", "connect to this running shell", type=count),
    usage="gpucoord shell [options] [-- COMMAND [ARGUMENT ...]]",
    epilog=EPILOG,
    defaults=DEFAULTS,
)
def shell(options: Namespace) -> int:
    """Returns the exit code of the job's command, or 125."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return complain(NO_TERMINAL)
    body = None if options.attach else shell_body(options)

    def work(client: Client) -> int:
        job_id = options.attach if body is None else _submitted(client, body)
        code = attend(client, job_id, is_own=body is not None)
        if options.json:
            show(options, client.job(job_id), ())
        return code

    return connection.run(options, work)


def shell_body(options: Namespace) -> Json:
    here = submit.is_local(options)
    words = submit.words_of(options)
    if not words:
        words = [LOCAL_SHELL if here else REMOTE_SHELL]
        options.name = options.name or "shell"
    passed_on = [(name, os.environ[name]) for name in PASSED_ON if name in os.environ]
    options.env = [*passed_on, *options.env]
    return submit.body_of(options, words) | {"interactive": True}


def _submitted(client: Client, body: Json) -> int:
    job_id = client.submit(body)
    complain(f"job {job_id} submitted")
    return job_id


def attend(
    client: Client,
    job_id: int,
    *,
    is_own: bool,
    on_start: Callable[[Json], None] = lambda _job: None,
) -> int:
    """Wait for the job's start, then connect until its end or until the user leaves."""
    from gpucoord_site.cli.follow import ending

    try:
        job = _started(client, job_id)
    except KeyboardInterrupt:
        if is_own:
            client.cancel(job_id)
            complain(f"job {job_id} cancelled")
        return CANCELLED
    if job["state"] != "finished":
        on_start(job)
    refused_until = time.monotonic() + RECORDED_WITHIN_S
    while job["state"] != "finished":
        try:
            connect(client, job_id)
            job = _recorded(client, job_id)
        except Left:
            again = f"gpucoord shell --attach {job_id}"
            complain(f"job {job_id} goes on; connect again: {again}")
            return 0
        except NotRunning as error:
            if time.monotonic() > refused_until:
                return complain(str(error))
            time.sleep(SHORTEST_S)
            job = client.job(job_id)
        except TerminalFailed as error:
            return complain(str(error))
        except NotReachable as error:
            complain(f"{error} Trying again; Ctrl-C ends this.")
            job = _reached(client, job_id)
    code, text = ending(job)
    if text:
        complain(f"job {job_id} {text}")
    return code


def _started(client: Client, job_id: int) -> Json:
    """Say why it waits, until it runs or has ended."""
    from gpucoord_site.cli.follow import reasons

    said, pause_s = "", SHORTEST_S
    while (job := client.job(job_id))["state"] in ("queued", "starting"):
        why = reasons(job)
        if why and why != said:
            complain(f"waits: {why}")
        said = why or said
        time.sleep(pause_s)
        pause_s = min(LONGEST_S, pause_s * 1.5)
    return job


def _recorded(client: Client, job_id: int) -> Json:
    """The job after its terminal was closed. Raises TerminalFailed if it goes on."""
    try:
        return client.wait(job_id, RECORDED_WITHIN_S)
    except TimeoutError:
        text = f"The terminal of job {job_id} is connected elsewhere, or its job was requeued."
        raise TerminalFailed(text) from None


def _reached(client: Client, job_id: int) -> Json:
    while True:
        time.sleep(LONGEST_S)
        try:
            return client.job(job_id)
        except NotReachable:
            continue


# `gpucoord notebook`: JupyterLab of the user's environment as an interactive job.

PROGRAM, NAME = "jupyter-lab", "notebook"
NO_NOTEBOOK_TERMINAL = "gpucoord notebook needs a terminal."
NOT_INSTALLED = (
    "JupyterLab is in no folder of PATH. Activate its environment, or install it:"
    " python -m pip install jupyterlab"
)
# The token is in JUPYTER_TOKEN, where other accounts do not see it. The port is the job's own.
SERVE = (
    f"exec {PROGRAM} --no-browser --ip=127.0.0.1 --ServerApp.port_retries=0"
    ' ${GPUCOORD_PORT:+"--port=$GPUCOORD_PORT"} "$@"'
)
NOTEBOOK_EPILOG = """\
It prints a line with the link, and the ssh command that makes it work on another computer. The
terminal shows the output of JupyterLab; Ctrl-C twice ends it. Enter and then ~. leaves it, and
`gpucoord shell --attach JOB` connects again; without a terminal the job ends after 5 minutes. It is
cancelled when its GPUs stay idle, after a warning in the terminal.
"""


@command(
    "notebook",
    "Run JupyterLab of this environment as a job.",
    *ARGUMENTS,
    usage="gpucoord notebook [options] [-- JUPYTER ARGUMENT ...]",
    epilog=NOTEBOOK_EPILOG,
    defaults=DEFAULTS,
)
def notebook(options: Namespace) -> int:
    """Returns the exit code of JupyterLab, or 125."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return complain(NO_NOTEBOOK_TERMINAL)
    if submit.is_local(options) and not options.host and not shutil.which(PROGRAM):
        return complain(NOT_INSTALLED)
    token = secrets.token_hex(24)
    body = notebook_body(options, token)

    def tell(job: Json) -> None:
        complain(how_to_open(job, token))

    return connection.run(
        options,
        lambda client: attend(client, _submitted(client, body), is_own=True, on_start=tell),
    )


def notebook_body(options: Namespace, token: str) -> Json:
    options.name = options.name or NAME
    options.env = [*options.env, ("JUPYTER_TOKEN", token)]
    shell = ["/bin/sh", "-c"] if submit.is_local(options) else ["/bin/sh", "-lc"]
    words = [*shell, SERVE, NAME, *submit.words_of(options)]
    return submit.body_of(options, words) | {"interactive": True}


def how_to_open(job: Json, token: str) -> str:
    """The lines for this computer and for another one, once the job runs."""
    attempt = job["attempts"][-1]
    port = attempt["port"]
    if port is None:
        return "The job has no port of its own; the output of JupyterLab has the link."
    link = f"http://127.0.0.1:{port}/lab?token={token}"
    tunnel = f"ssh -N -L {port}:127.0.0.1:{port} {attempt['account']}@{attempt['host']}"
    return f"on this computer: {link}\nfrom another one: {tunnel}  # then open {link}"


# This terminal in raw mode, connected by a WebSocket to that of the job.
# The messages are described in scheduler/terminals/consumers.py.

ENDED, NOT_RUNNING = 4410, 4409
# From these a new connection does not help.
REFUSED = {4401, 4403, 4404, 4412, 4429}
STDIN, STDOUT = 0, 1
PIECE = 4096
ACKNOWLEDGE_EVERY = 32 * 1024
MOST_UNCONFIRMED = 64 * 1024
OPEN_TIMEOUT_S = 30.0
LARGEST_MESSAGE = 1024 * 1024
NEEDS_WEBSOCKETS = "gpucoord shell needs the package websockets: pip install websockets"


class TerminalFailed(RequestFailed):
    """There is no connection to the terminal; the message is a sentence."""


class NotRunning(TerminalFailed):
    """The job does not run yet, or no longer."""


class Left(Exception):
    """The user left the terminal by ~. and the job goes on."""


def connect(client: Client, job_id: int) -> None:
    """Show the job's terminal until it ends.

    Raises Left, TerminalFailed, or NotReachable when the connection breaks.
    """
    try:
        from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
        from websockets.sync.client import connect as open_socket
        from websockets.typing import Origin
    except ImportError:
        raise TerminalFailed(NEEDS_WEBSOCKETS) from None
    address, origin = addresses(client.url, client.headers)
    try:
        with open_socket(
            f"{address}/ws/jobs/{job_id}/terminal/",
            sock=_proven(client.url),
            origin=Origin(origin),
            additional_headers=client.headers,
            compression=None,
            proxy=None,
            open_timeout=OPEN_TIMEOUT_S,
            max_size=LARGEST_MESSAGE,
        ) as connection:
            Session(connection).run()
    except ConnectionClosed as closed:
        code, reason = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")
        if code == ENDED:
            return
        if code == NOT_RUNNING:
            raise NotRunning(reason) from None
        if code in REFUSED:
            raise TerminalFailed(reason or f"The server closed the terminal ({code}).") from None
        raise NotReachable(f"The connection to the terminal broke ({code}).") from None
    except InvalidStatus as error:
        status = error.response.status_code
        raise TerminalFailed(f"{client.url} refused the terminal (status {status}).") from None
    except (OSError, WebSocketException) as error:
        raise NotReachable(f"The terminal can't be reached ({error}).") from None


def _proven(url: str) -> socket.socket | None:
    """The connection that the token may be sent on. None: TLS proves the server."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        return None
    return connected(parts.hostname or "", parts.port or 80, url)


def addresses(url: str, headers: dict[str, str]) -> tuple[str, str]:
    """The address of WebSockets, and the origin that the server expects."""
    parts = urlsplit(url)
    scheme = headers.get("X-Forwarded-Proto", parts.scheme)
    socket_scheme = "wss" if parts.scheme == "https" else "ws"
    return f"{socket_scheme}://{parts.netloc}{parts.path}", f"{scheme}://{parts.netloc}"


class Session:
    """Output is shown by this thread; another one sends the input."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._escape = Escape()
        self._sent = self._confirmed = 0
        self._may_send = threading.Condition()
        self._has_left = self._is_over = False
        self._wake_read, self._wake_write = os.pipe()

    def run(self) -> None:
        """Raises ConnectionClosed at the end, or Left."""
        sender = threading.Thread(target=self._send_all, daemon=True)
        with raw_terminal(), self._window_changes():
            sender.start()
            try:
                self._show_all()
            finally:
                self._stop(sender)
        if self._has_left:
            raise Left

    def _show_all(self) -> None:
        from websockets.exceptions import ConnectionClosed

        shown = acknowledged = 0
        try:
            while True:
                message = self._connection.recv()
                if isinstance(message, str):
                    self._hear(input_rules.parse_json(message))
                    continue
                write_all(STDOUT, message)
                shown += len(message)
                if shown - acknowledged >= ACKNOWLEDGE_EVERY:
                    acknowledged = shown
                    self._connection.send(json.dumps({"ack": shown}))
        except ConnectionClosed:
            if not self._has_left:
                raise

    def _hear(self, message: Json) -> None:
        if "input" in message:
            with self._may_send:
                self._confirmed = message["input"]
                self._may_send.notify()
        elif notice := message.get("notice"):
            write_all(STDOUT, f"\r\n\a[gpucoord] {escaped(notice)}\r\n".encode())

    def _send_all(self) -> None:
        """Until the user leaves, the connection breaks or the session is over."""
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed, OSError):
            self._send_size()
            while not self._is_over:
                ready, _, _ = select.select([STDIN, self._wake_read], [], [])
                if self._wake_read in ready:
                    os.read(self._wake_read, PIECE)
                    self._send_size()
                if STDIN in ready and not self._is_over:
                    self._send_input(os.read(STDIN, PIECE))
                if self._has_left:
                    self._connection.close()
                    return

    def _send_input(self, typed: bytes) -> None:
        data, self._has_left = self._escape.feed(typed) if typed else (b"", True)
        with self._may_send:
            while self._sent - self._confirmed > MOST_UNCONFIRMED and not self._is_over:
                self._may_send.wait(1.0)
        if data:
            self._sent += len(data)
            self._connection.send(data)

    def _send_size(self) -> None:
        # Not that of COLUMNS and LINES, which do not change with the window.
        size = os.get_terminal_size(STDOUT)
        self._connection.send(json.dumps({"size": [size.lines, size.columns]}))

    def _stop(self, sender: threading.Thread) -> None:
        self._is_over = True
        self._wake()
        sender.join(2.0)
        os.close(self._wake_write)
        if not sender.is_alive():
            os.close(self._wake_read)

    def _wake(self) -> None:
        os.write(self._wake_write, b"w")

    @contextmanager
    def _window_changes(self) -> Iterator[None]:
        before = signal.signal(signal.SIGWINCH, lambda *_: self._wake())
        try:
            yield
        finally:
            signal.signal(signal.SIGWINCH, before)


class Escape:
    """Finds ~. at the beginning of a line, as ssh does; ~~ is a single ~."""

    def __init__(self) -> None:
        self._begins_line = True
        self._has_tilde = False

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """The bytes to send, and whether the user leaves."""
        send = bytearray()
        for byte in typed:
            char = bytes([byte])
            if self._has_tilde:
                self._has_tilde = False
                if char == b".":
                    return bytes(send), True
                send += b"~" if char == b"~" else b"~" + char
            elif char == b"~" and self._begins_line:
                self._has_tilde = True
                continue
            else:
                send += char
            self._begins_line = char in b"\r\n"
        return bytes(send), False


@contextmanager
def raw_terminal() -> Iterator[None]:
    """Pass on each key, Ctrl-C too, and restore the terminal afterwards."""
    before = termios.tcgetattr(STDIN)
    # Input typed ahead is kept.
    tty.setraw(STDIN, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(STDIN, termios.TCSADRAIN, before)
        sys.stdout.flush()


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
