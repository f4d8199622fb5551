"""`gpucoord incidents [ID]`: incidents, and what would start earlier. Needs no Django."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import connection, tables
from monitor.facts.incidents import INCIDENT_ANSWERS

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client

Json = dict[str, Any]
LISTED = tuple(field for field in INCIDENT_ANSWERS if field.label)


def main(argv: Sequence[str]) -> int:
    options = parser().parse_args(argv)
    if options.incident is None:
        if options.end or options.kill:
            connection.complain("Write the number of the incident whose process shall end.")
            return 2
        return connection.tell(options, lambda client: client.incidents(), _list_lines)
    return connection.tell(options, lambda client: shown(client, options), lines)


def shown(client: Client, options: Any) -> Json:
    """The incident with the jobs that would start earlier; null = not visible or not known."""
    incident = client.incident(options.incident)
    if options.end or options.kill:
        incident = client.end_of_incident(incident, kill=options.kill)
    without = {"jobs": None} if incident["closed_at"] else client.without_incident(incident["id"])
    return incident | {"without": without["jobs"], "signal": options.end or options.kill}


def _list_lines(answer: Json) -> Iterator[str]:
    if not answer["incidents"]:
        yield "There are no open incidents."
        return
    rows = [
        [tables.worded(field, row[field.name]) for field in LISTED] for row in answer["incidents"]
    ]
    yield from tables.table([field.label.upper() for field in LISTED], rows)


def lines(answer: Json) -> Iterator[str]:
    yield f"incident {answer['id']}: {answer['headline']}"
    yield f"since {tables.moment(answer['since'])}"
    if answer["closed_at"]:
        yield f"closed {tables.moment(answer['closed_at'])}"
        return
    if answer["signal"]:
        yield f"{answer['host']} sends the signal to process {answer['pid']} now"
    yield from _without(answer["without"])


def _without(jobs: list[Json] | None) -> Iterator[str]:
    if jobs is None:
        yield "if it ended now: unknown"
    elif not jobs:
        yield "if it ended now: no waiting job would start earlier"
    else:
        yield "if it ended now:"
        for job in jobs:
            before = f"~{tables.moment(job['start_now'])}" if job["start_now"] else "unknown"
            yield (
                f"  job {job['job']} {job['name']} ({job['owner']}):"
                f" ~{tables.moment(job['start'])} instead of {before}"
            )


def parser() -> ArgumentParser:
    made = connection.parser(
        "incidents", "List open incidents, or show one and the jobs that would start earlier."
    )
    made.add_argument("incident", metavar="ID", type=int, nargs="?", help="show this incident")
    made.add_argument(
        "--end", action="store_true", help="send SIGTERM to its process (operators only)"
    )
    made.add_argument(
        "--kill", action="store_true", help="send SIGKILL to its process (operators only)"
    )
    return made


PARSERS = {"incidents": parser}
