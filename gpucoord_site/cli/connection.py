"""The server and the token of a command: from options, variables, the token file or the server.

A server on this machine logs its users in by their OS account, so they need no token.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import instances, local_login, token_file
from gpucoord_site.cli.parsing import Parser
from monitor.facts.input_rules import escaped

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client

TIMEOUT_S = 30.0
LONGEST_S = 86_400.0
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


def add_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--url", help="the server (default: GPUCOORD_URL, or the service on this machine)")
    add("--token", help="better: GPUCOORD_TOKEN, or the file that `gpucoord token --save` writes")


def add_json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the JSON of the REST API")


def parser(name: str, description: str, **more: Any) -> Parser:
    """A parser with the options that all commands have."""
    made = Parser(prog=f"gpucoord {name}", description=description, **more)
    add_json(made)
    add_options(made)
    return made


def number(text: str) -> float:
    """The value of an option; JSON has no infinity."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ArgumentTypeError(f"{escaped(text)!r} is not a number")
    return value


def seconds(text: str) -> float:
    """The value of an option: a number of seconds, at most a day."""
    value = number(text)
    if not 0 <= value <= LONGEST_S:
        raise ArgumentTypeError(f"{escaped(text)!r} is not a number of seconds from 0 to 86400")
    return value


def count(text: str) -> int:
    """The value of an option: a whole number, 1 or more."""
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 19 and int(text)):
        raise ArgumentTypeError(f"{escaped(text)!r} is not a whole number, 1 or more")
    return int(text)


def variable(text: str) -> tuple[str, str]:
    """The value of an option: NAME=VALUE, or NAME for its value in this shell."""
    name, equals, value = text.partition("=")
    if not equals:
        if name not in os.environ:
            raise ArgumentTypeError(f"{shlex.quote(name)} is not set here; write NAME=VALUE")
        value = os.environ[name]
    return name, value


def given_url(options: Namespace) -> str | None:
    return options.url or os.environ.get("GPUCOORD_URL") or None


def url(options: Namespace) -> str:
    """The given address, or that of the service on this machine. Raises RequestFailed."""
    from gpucoord_site.cli.transport import RequestFailed

    if given := given_url(options):
        return given
    try:
        running = instances.addresses()
    except local_login.LoginRefused as error:
        raise RequestFailed(str(error)) from None
    if len(running) > 1:
        raise RequestFailed(SEVERAL.format(addresses=", ".join(running)))
    return running[0] if running else URL


def connect(options: Namespace, timeout_s: float = TIMEOUT_S) -> Client:
    """Raises RequestFailed or UnsafeToken with a sentence."""
    from gpucoord_site.cli.client import Client, RequestFailed
    from gpucoord_site.cli.transport import Transport

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


def _local_login(address: str) -> dict[str, Any] | None:
    from gpucoord_site.cli.client import RequestFailed

    try:
        return local_login.ask(address, "token")
    except local_login.LoginRefused as error:
        raise RequestFailed(str(error)) from None


def tell(
    options: Namespace,
    question: Callable[[Client], dict[str, Any]],
    lines: Callable[[dict[str, Any]], Iterable[str]],
) -> int:
    """Print the answer, with --json as JSON. Returns 0, or 125 when the request failed."""

    def work(client: Client) -> int:
        answer = question(client)
        text = json.dumps(answer, indent=2) if options.json else _text(lines(answer))
        sys.stdout.write(f"{text}\n")
        return 0

    return run(options, work)


def run(options: Namespace, work: Callable[[Client], int]) -> int:
    """The exit code of `work`, or 125 with a sentence when a request failed."""
    from gpucoord_site.cli.client import RequestFailed

    try:
        with closing(connect(options)) as client:
            return work(client)
    except (RequestFailed, token_file.UnsafeToken) as error:
        complain(str(error))
    except WRONG_FORM as error:
        complain(f"{UNEXPECTED} ({type(error).__name__}: {error}).")
    return 125


def complain(text: str) -> None:
    for line in text.splitlines():
        sys.stderr.write(f"gpucoord: {escaped(line)}\n")
    sys.stderr.flush()


def _text(lines: Iterable[str]) -> str:
    return "\n".join(map(escaped, lines))


def _token(options: Namespace) -> str | None:
    """The given or saved token; None = there is none."""
    from gpucoord_site.cli.client import RequestFailed

    token = options.token or os.environ.get("GPUCOORD_TOKEN") or token_file.load()
    if not token:
        return None
    if not token.isascii() or not token.isprintable():
        raise RequestFailed("The token has characters that no token has.")
    return token.strip()
