"""`gpucoord prompt MODEL TEXT`: send a prompt to a language model and print its answer."""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import connection
from monitor.facts.input_rules import escaped_lines

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client

TYPES = ("parse", "transform", "generate", "execute", "decide")
ENDED = ("complete", "failed")
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 2.0
NO_TEXT = "Write the prompt after the model, or send it to the standard input."


def main(argv: Sequence[str]) -> int:
    """Returns 0, 1 when the prompt failed, or 125 when the request failed."""
    options = _parser().parse_args(argv)
    text = " ".join(options.text) or ("" if sys.stdin.isatty() else sys.stdin.read())
    if not text.strip():
        connection.complain(NO_TEXT)
        return 2
    return connection.run(options, lambda client: _send(client, options, text))


def _send(client: Client, options: Namespace, text: str) -> int:
    row = client.send_prompt(
        {
            "model": options.model,
            "type": options.type,
            "priority": options.priority,
            "prompt": text,
        }
    )
    if options.no_wait:
        return _print(row, options, f"prompt {row['id']}")
    row = _ended(client, row)
    if row["status"] == "failed":
        if options.json:
            _print(row, options, "")
        connection.complain(f"prompt {row['id']} failed: {row['error']}")
        return 1
    return _print(row, options, row["result"])


def _ended(client: Client, row: dict[str, Any]) -> dict[str, Any]:
    """The prompt once it has ended. Why it waits goes to stderr, when that changes."""
    reason, pause = "", SHORTEST_PAUSE_S
    while row["status"] not in ENDED:
        if row["waits_for"] and row["waits_for"] != reason:
            reason = row["waits_for"]
            connection.complain(f"prompt {row['id']} waits: {reason}")
        time.sleep(pause)
        pause = min(LONGEST_PAUSE_S, pause * 1.5)
        row = client.prompt(row["id"])
    return row


def _print(row: dict[str, Any], options: Namespace, text: str) -> int:
    shown = json.dumps(row, indent=2) if options.json else escaped_lines(text)
    sys.stdout.write(f"{shown}\n")
    return 0


def _parser() -> ArgumentParser:
    parser = connection.parser("prompt", "Send a prompt to a language model, print its answer.")
    add = parser.add_argument
    add("model", metavar="MODEL", help="the name of the model, as on the page of models")
    add("text", metavar="TEXT", nargs="*", help="the prompt (default: the standard input)")
    add("--type", choices=TYPES, default="generate", help="purpose of the prompt")
    add("--priority", type=int, choices=range(1, 6), default=3, help="5 is served first")
    add("--no-wait", action="store_true", help="print the number of the prompt, do not wait")
    return parser


PARSERS = {"prompt": _parser}
