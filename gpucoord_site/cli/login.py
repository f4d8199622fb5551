"""`gpucoord login`: a link that logs a browser in once. Run on the server. Needs no Django."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from gpucoord_site.cli import connection, local_login
from gpucoord_site.cli.parsing import Parser
from gpucoord_site.cli.transport import RequestFailed

NO_SERVICE = (
    "No gpucoord service on this machine logs you in at {url}. Run `gpucoord login` on the server,"
    " or log in with a password in the browser."
)
TAKES_NONE = "gpucoord login uses your OS account on the server; it takes no token."


def main(argv: Sequence[str]) -> int:
    """Returns 0, or 125 when there is no link."""
    options = _parser().parse_args(argv)
    try:
        answer = _ask(options)
    except local_login.LoginRefused as error:
        sys.stderr.write(f"gpucoord: {error}\n")
        return 125
    link = (answer["public_url"] or answer["url"]) + answer["path"]
    shown = {"user": answer["user"], "url": link, "seconds": answer["seconds"]}
    text = json.dumps(shown, indent=2) if options.json else "\n".join(_lines(answer, link))
    sys.stdout.write(f"{text}\n")
    return 0


def _ask(options: Namespace) -> dict[str, Any]:
    if options.token:
        raise local_login.LoginRefused(TAKES_NONE)
    try:
        address = connection.url(options)
    except RequestFailed as error:
        raise local_login.LoginRefused(str(error)) from None
    answer = local_login.ask(address, "link")
    if answer is None:
        raise local_login.LoginRefused(NO_SERVICE.format(url=address))
    return answer


def _lines(answer: dict[str, Any], link: str) -> Iterator[str]:
    yield f"Open this link within {answer['seconds']} seconds. It logs you in as {answer['user']},"
    yield "and it works once:"
    yield f"  {link}"
    if not answer["public_url"]:
        port, host = urlsplit(answer["url"]).port, os.uname().nodename
        here = urlsplit(answer["url"]).netloc
        yield f"From another computer, first run there: ssh -L {port}:{here} {host}"


def _parser() -> ArgumentParser:
    parser = Parser(
        prog="gpucoord login",
        description="Print a link that logs your browser in as you, once. Run it on the server.",
    )
    connection.add_json(parser)
    connection.add_options(parser)
    return parser


PARSERS = {"login": _parser}
