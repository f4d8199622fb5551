"""Which server a command talks to, and as whom: options, variables, the kept token."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any

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


def add_json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print it as REST tells it")


def url(asked: Namespace) -> str:
    return asked.url or os.environ.get("GPUCOORD_URL") or URL


def connect(asked: Namespace) -> Client:
    """Raises UnableToAsk or UnsafeToken with a sentence."""
    from gpucoord_site.client import Client

    return Client(url(asked), _token(asked))


def tell(
    asked: Namespace,
    question: Callable[[Client], dict[str, Any]],
    lines: Callable[[dict[str, Any]], Iterable[str]],
) -> int:
    """Print the answer, with --json as REST gives it. Returns 0, or 125 when none can be had."""
    from gpucoord_site.client import UnableToAsk

    try:
        with closing(connect(asked)) as client:
            found = question(client)
    except (UnableToAsk, token_file.UnsafeToken) as error:
        sys.stderr.write(f"gpucoord: {error}\n")
        return 125
    text = json.dumps(found, indent=2) if asked.json else "\n".join(lines(found))
    sys.stdout.write(f"{text}\n")
    return 0


def _token(asked: Namespace) -> str:
    from gpucoord_site.client import UnableToAsk

    token = asked.token or os.environ.get("GPUCOORD_TOKEN") or token_file.load()
    if not token:
        raise UnableToAsk(WANTED)
    if not token.isascii() or not token.isprintable():
        raise UnableToAsk("The token has characters that no token has.")
    return token.strip()
