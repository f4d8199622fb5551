"""Which server a command talks to, and as whom: options, variables, the kept token."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from gpucoord_site import token_file

if TYPE_CHECKING:
    from gpucoord_site.client import Client

URL = "http://127.0.0.1:8000"
WANTED = (
    "A token is needed: set GPUCOORD_TOKEN, or keep one with `gpucoord token USER --save`. "
    "`gpucoord token USER`, run on the server, makes one."
)


def add_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--url", help=f"the server (default: GPUCOORD_URL, or {URL})")
    add("--token", help="better: GPUCOORD_TOKEN, or the file that `gpucoord token --save` writes")


def url(asked: Namespace) -> str:
    return asked.url or os.environ.get("GPUCOORD_URL") or URL


def connect(asked: Namespace) -> Client:
    """Raises UnableToAsk or UnsafeToken with a sentence."""
    from gpucoord_site.client import Client

    return Client(url(asked), _token(asked))


def _token(asked: Namespace) -> str:
    from gpucoord_site.client import UnableToAsk

    token = asked.token or os.environ.get("GPUCOORD_TOKEN") or token_file.load()
    if not token:
        raise UnableToAsk(WANTED)
    if not token.isascii() or not token.isprintable():
        raise UnableToAsk("The token has characters that no token has.")
    return token.strip()
