"""`gpucoord report`: GPU usage, fair share and violations of a period. Needs no Django."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import connection, local_login, tables
from gpucoord_site.cli.commands import arg, command, complain
from monitor.facts.input_rules import escaped

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client

FORMATS = ("text", "json", "csv", "xlsx", "html", "pdf")
BINARY = ("xlsx", "pdf")
TO_FILE = "Write it to a file: add --output FILE."


# Period, scope and format of the report.
CHOICE = (
    arg("--last", "length such as 24h, 7d or 4w, or day, week or month (default: 24h)",
        action="store"),
    arg("--from TIME", "start of the period instead of --last", dest="begin"),
    arg("--to TIME", "end of the period (default: now)", dest="end"),
    arg("--user NAME", "only this user"),
    arg("--scope", "one of all, user:NAME, group:NAME, gpu:UUID and host:NAME (default: all)",
        action="store"),
    arg("--format", "format (default: text)", choices=FORMATS, default="text"),
    arg("--json", "the same as --format json", dest="format", action="store_const", const="json"),
    arg("--output -o FILE", "write to this file instead of standard output"),
)  # fmt: skip


@command(
    "report",
    "Print a report of GPU usage, fair share and violations.",
    *CHOICE,
    arg("--tag NAME", "GPU-hours by the values of this tag of jobs, such as project"),
    *connection.PLACE,
)
def report(options: Namespace) -> int:
    """Returns 0, or 125 when the request failed or the file can't be written."""
    from gpucoord_site.cli.client import RequestFailed

    if options.tag:
        return _by_tag(options)
    try:
        if options.format in BINARY and not options.output and sys.stdout.isatty():
            raise RequestFailed(f"A terminal can't show {options.format}. {TO_FILE}")
        with closing(connection.connect(options)) as client:
            write(client.report(query(options)), options.output)
    except BrokenPipeError:
        raise
    except (RequestFailed, local_login.UnsafeToken, OSError) as error:
        return complain(str(error))
    return 0


def _by_tag(options: Namespace) -> int:
    if options.format not in ("text", "json", "csv") or options.scope:
        return complain("A report by tag is text, json or csv, of all users or --user NAME.")
    given = _given(options, tag=options.tag, user=options.user)

    def work(client: Client) -> int:
        if options.format == "csv":
            write(client.report_by_tag_csv(given), options.output)
            return 0
        answer = client.report_by_tag(given)
        is_json = options.format == "json"
        lines = [json.dumps(answer, indent=2)] if is_json else map(escaped, tag_lines(answer))
        write("".join(f"{line}\n" for line in lines).encode(), options.output)
        return 0

    return connection.run(options, work)


def tag_lines(answer: dict[str, Any]) -> Iterator[str]:
    """A line for each value, most GPU-hours first."""
    if not answer["values"]:
        yield f"No job with the tag {answer['tag']} had a GPU or ran in this time."
        return
    heads = (answer["tag"].upper(), "JOBS", "USERS", "GPU-HOURS", "USED", "MEASURED")
    rows = [
        (
            value_row["value"] or tables.UNKNOWN,
            str(value_row["jobs"]),
            str(value_row["users"]),
            f"{value_row['gpu_hours_held']:.2f}",
            _percent(value_row["efficiency"]),
            _percent(value_row["coverage"]),
        )
        for value_row in answer["values"]
    ]
    yield from tables.table(heads, rows)


def _percent(part: float | None) -> str:
    return tables.percent(None if part is None else 100 * part)


def query(options: Namespace) -> dict[str, str]:
    """The parameters of GET /api/reports/usage/ that were given."""
    scope = f"user:{options.user}" if options.user else options.scope
    return _given(options, scope=scope, format=options.format)


def _given(options: Namespace, **more: str | None) -> dict[str, str]:
    period = {"last": options.last, "from": options.begin, "to": options.end}
    return {name: value for name, value in (period | more).items() if value}


def write(content: bytes, output: str | None) -> None:
    if output:
        Path(output).write_bytes(content)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
