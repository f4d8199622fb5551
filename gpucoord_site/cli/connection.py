"""The server and the token of a command: from options, variables, the token file or the server.

A server on this machine logs its users in by their OS account, so they need no token.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import local_login
from gpucoord_site.cli.commands import USAGE_ERROR, Argument, Command, arg, complain, show

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client

Json = dict[str, Any]
TIMEOUT_S = 30.0
URL = "http://127.0.0.1:8000"
UNEXPECTED = (
    "The server's answer has another form than expected. Is it gpucoord, and of the same version?"
)
# Errors of reading an answer of the wrong shape.
WRONG_FORM = (TypeError, KeyError, AttributeError, IndexError, ValueError)
WANTED = (
    "A token is needed: set GPUCOORD_TOKEN, or save one with `gpucoord token USER --save`. "
    "`gpucoord token USER`, run on the server, makes one. On the server itself, no token is needed"
    " while gpucoord runs there."
)
SEVERAL = (
    "Several gpucoord services run on this machine: {addresses}."
    " Choose one with --url, GPUCOORD_URL or GPUCOORD_DATA."
)
JSON = arg("--json", "print the JSON of the REST API")
PLACE = (
    arg("--url=", "the server (default: GPUCOORD_URL, or the service on this machine)"),
    arg("--token=", "better: GPUCOORD_TOKEN, or the file that `gpucoord token --save` writes"),
)
SERVER = (JSON, *PLACE)


def asks(
    name: str,
    description: str,
    *arguments: Argument,
    ask: Callable[[Client, Namespace], Json],
    lines: Callable[[Json], Iterable[str]],
    check: Callable[[Namespace], str | None] = lambda _: None,
) -> Command:
    """A command that asks the server and prints the answer, with --json as JSON.

    check: says what is wrong with the options, before the server is asked.
    """

    def run_command(options: Namespace) -> int:
        if problem := check(options):
            return complain(problem, USAGE_ERROR)
        return tell(options, lambda client: ask(client, options), lines)

    return Command(name, description, arguments, run_command, {})


def tell(
    options: Namespace,
    question: Callable[[Client], Json],
    lines: Callable[[Json], Iterable[str]],
) -> int:
    """Print the answer, with --json as JSON. Returns as `run`."""

    def work(client: Client) -> int:
        answer = question(client)
        return show(options, answer, lines(answer))

    return run(options, work)


def run(options: Namespace, work: Callable[[Client], int]) -> int:
    """The exit code of `work`, or 125 with a sentence. Raises Failed when a request failed."""
    try:
        with closing(connect(options)) as client:
            return work(client)
    except local_login.UnsafeToken as error:
        return complain(str(error))
    except WRONG_FORM as error:
        return complain(f"{UNEXPECTED} ({type(error).__name__}: {error}).")


def given_url(options: Namespace) -> str | None:
    return options.url or os.environ.get("GPUCOORD_URL") or None


def url(options: Namespace) -> str:
    """The given address, or that of the service on this machine. Raises RequestFailed."""
    from gpucoord_site.cli.client import RequestFailed

    if given := given_url(options):
        return given
    try:
        running = local_login.addresses()
    except local_login.LoginRefused as error:
        raise RequestFailed(str(error)) from None
    if len(running) > 1:
        raise RequestFailed(SEVERAL.format(addresses=", ".join(running)))
    return running[0] if running else URL


def connect(options: Namespace, timeout_s: float = TIMEOUT_S) -> Client:
    """Raises RequestFailed or UnsafeToken with a sentence."""
    from gpucoord_site.cli.client import Client, RequestFailed, Transport

    address = url(options)
    if token := _token(options):
        return Client(address, token, timeout_s)
    login = _local_login(address)
    if login is None:
        # A wrong address, or a service that does not run here, is the better explanation.
        with closing(Transport(address, {}, timeout_s)) as transport:
            if local_login.local_port(address) is not None:
                transport.connect()
        raise RequestFailed(WANTED)

    def renew() -> str | None:
        again = _local_login(address)
        return None if again is None else str(again["token"])

    # The service names its address: another program may listen on another one with this port.
    return Client(login["url"], login["token"], timeout_s, headers=login["headers"], renew=renew)


def _local_login(address: str) -> Json | None:
    from gpucoord_site.cli.client import RequestFailed

    try:
        return local_login.ask(address, "token")
    except local_login.LoginRefused as error:
        raise RequestFailed(str(error)) from None


def _token(options: Namespace) -> str | None:
    """The given or saved token; None = there is none."""
    from gpucoord_site.cli.client import RequestFailed

    token = options.token or os.environ.get("GPUCOORD_TOKEN") or local_login.saved_token()
    if not token:
        return None
    if not token.isascii() or not token.isprintable():
        raise RequestFailed("The token has characters that no token has.")
    return token.strip()
