"""`gpucoord clean`: clean up full file systems, or list what would be deleted. Needs no Django."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import connection
from scheduler.facts.units import size

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client

Json = dict[str, Any]
OPEN = ("waiting", "running")
LOOK_EVERY_S = 0.5
MOST_LINES = 40
pause = time.sleep


def main(argv: Sequence[str]) -> int:
    options = parser().parse_args(argv)

    def question(client: Client) -> Json:
        run = client.clean(options.path, dry_run=options.dry_run, host=options.host)
        while run["state"] in OPEN:
            pause(LOOK_EVERY_S)
            run = client.cleaning(run["id"])
        return run

    return connection.tell(options, question, lines)


def lines(run: Json) -> Iterator[str]:
    for file in run["files"][:MOST_LINES]:
        yield f"{file['result']}: {file['path']} ({file['rule']}, {size(file['bytes'])})"
    more = sum(run["results"].values()) - min(len(run["files"]), MOST_LINES)
    if more > 0:
        yield f"and {more} more"
    for problem in run["problems"]:
        yield f"Problem: {problem}"
    if run["state"] == "failed":
        yield f"Clean-up {run['id']} failed; see the log of gpucoord."
        return
    verb = "would be freed" if run["dry_run"] else "freed"
    yield (
        f"{size(run['freed_bytes'])} {verb}. The rules allow to delete {run['candidates']}"
        f" files ({size(run['candidate_bytes'])})."
    )


def parser() -> ArgumentParser:
    made = connection.parser(
        "clean",
        "Delete old logs, empty databases, stale checkpoints and synced data until the file"
        " systems are below the goal of the policy cleaning. Operators only.",
    )
    made.add_argument("--dry-run", action="store_true", help="only list what would be deleted")
    made.add_argument("--path", metavar="P", default="", help="only this watched folder")
    made.add_argument("--host", default="", help="host (default: the one that answers)")
    return made


PARSERS = {"clean": parser}
