"""`gpucoord batch SCRIPT --input FOLDER`: run a script or command for many items."""

from __future__ import annotations

import glob
import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpucoord_site.cli import connection
from gpucoord_site.cli.commands import Command, Failed, Parser, arg, command
from gpucoord_site.cli.submit import named_values
from monitor.facts import input_rules


class UnreadableInput(Failed):
    """The items can't be found."""


class Intermixed(Command):
    """Arguments of the script may follow the options."""

    def read(self, parser: Parser, argv: Sequence[str]) -> Namespace:
        return parser.parse_intermixed_args(argv)


@command(
    "batch",
    "Run a script for many items, and print the number of the batch.",
    arg("script SCRIPT", "a registered script", nargs="?", default=""),
    arg("arguments NAME=VALUE", "further arguments of the script", nargs="*"),
    arg(
        "--input SOURCE",
        "a folder, a pattern, a file, a list (.txt, .json), or - ; may be repeated",
        action="append",
        required=True,
    ),
    arg("--command LINE", "a shell line instead, such as 'run \"$GPUCOORD_ITEM\"'"),
    arg("--name NAME", "name of the batch"),
    arg("--gpus N", "GPUs of each item (default: 1)", type=int),
    arg("--priority N", "priority of each item", type=int),
    arg(
        "--gpu-mode",
        "for exclusive, models leave their GPUs (default: by the number of items)",
        choices=("shared", "exclusive"),
    ),
    arg("--only-gpus LIST", "GPUs that exclusive mode may take, such as 0,2"),
    *connection.SERVER,
    usage="gpucoord batch SCRIPT --input FOLDER|GLOB|FILE [options] [NAME=VALUE ...]",
    kind=Intermixed,
)
def batch(options: Namespace) -> int:
    """Returns 0, or 125 when gpucoord failed or refused."""
    body = _body(options)
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
