"""`gpucoord batch SCRIPT --input FOLDER`: run a script or command for many items."""

from __future__ import annotations

import glob
import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpucoord_site.cli import connection
from gpucoord_site.cli.parsing import Parser
from gpucoord_site.cli.script_files import BadScript
from gpucoord_site.cli.submit import named_values
from monitor.facts import input_rules

OURS = 125


class UnreadableInput(Exception):
    """The items can't be found."""


def main(argv: Sequence[str]) -> int:
    """Returns 0, or 125 when gpucoord failed or refused."""
    # Arguments of the script may follow the options.
    options = _parser().parse_intermixed_args(argv)
    try:
        body = _body(options)
    except (BadScript, UnreadableInput) as error:
        connection.complain(str(error))
        return OURS
    return connection.tell(options, lambda client: client.submit_batch(body), lines)


def lines(answer: dict[str, Any]) -> Iterator[str]:
    yield f"{answer['id']}"
    if (answer["exclusive"] or {}).get("approval") == "asked":
        yield "An operator must approve its exclusive mode. Until then it shares GPUs."


def _body(options: Namespace) -> dict[str, Any]:
    body: dict[str, Any] = {"items": items_of(options.input)}
    if options.command:
        body |= {"command": options.command, "cwd": os.getcwd()}  # noqa: PTH109
    else:
        body |= {"script": options.script, "script_args": named_values(options.arguments)}
    if options.only_gpus:
        body["only_gpus"] = [part for part in options.only_gpus.split(",") if part]
    given = {
        "gpu_mode": options.gpu_mode,
        "name": options.name,
        "gpus": options.gpus,
        "priority": options.priority,
    }
    return body | {name: value for name, value in given.items() if value is not None}


def items_of(sources: Sequence[str]) -> list[str]:
    """The files of folders and patterns, and the lines of lists (.txt, .json, - = standard input).

    Any other file is an item itself.
    """
    return [item for source in sources for item in _items(source)]


def _items(source: str) -> list[str]:
    path = Path(source)
    if source == "-":
        return _lines(sys.stdin.read())
    if path.is_dir():
        names = sorted(str(p.resolve()) for p in path.iterdir() if p.is_file())
    elif path.is_file():
        return _of_file(path)
    else:
        names = sorted(str(Path(p).resolve()) for p in glob.glob(source, recursive=True))  # noqa: PTH207
    if not names:
        raise UnreadableInput(f"{source} is no file, and there are no files in it or like it")
    return names


def _of_file(path: Path) -> list[str]:
    try:
        if path.suffix == ".json":
            items = input_rules.parse_json(path.read_text(encoding="utf-8"))
            if not isinstance(items, list):
                raise UnreadableInput(f"{path} must contain a JSON list")
            return [item if isinstance(item, str) else json.dumps(item) for item in items]
        if path.suffix == ".txt":
            return _lines(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableInput(f"{path} can't be read: {error}") from None
    return [str(path.resolve())]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _parser() -> ArgumentParser:
    parser = Parser(
        prog="gpucoord batch",
        usage="gpucoord batch SCRIPT --input FOLDER|GLOB|FILE [options] [NAME=VALUE ...]",
        description="Run a script for many items, and print the number of the batch.",
    )
    add = parser.add_argument
    add("script", nargs="?", default="", metavar="SCRIPT", help="a registered script")
    add("arguments", nargs="*", metavar="NAME=VALUE", help="further arguments of the script")
    add(
        "--input",
        action="append",
        required=True,
        metavar="SOURCE",
        help="a folder, a pattern, a file, a list (.txt, .json), or - ; may be repeated",
    )
    add("--command", metavar="LINE", help="a shell line instead, such as 'run \"$GPUCOORD_ITEM\"'")
    add("--name", metavar="NAME", help="name of the batch")
    add("--gpus", type=int, metavar="N", help="GPUs of each item (default: 1)")
    add("--priority", type=int, metavar="N", help="priority of each item")
    add(
        "--gpu-mode",
        choices=("shared", "exclusive"),
        help="for exclusive, models leave their GPUs (default: by the number of items)",
    )
    add("--only-gpus", metavar="LIST", help="GPUs that exclusive mode may take, such as 0,2")
    connection.add_json(parser)
    connection.add_options(parser)
    return parser


PARSERS = {"batch": _parser}
