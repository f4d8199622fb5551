"""`gpucoord report`: GPU usage, fair share and violations of a period. Needs no Django."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import connection, tables, token_file
from gpucoord_site.cli.parsing import Parser
from monitor.facts.input_rules import escaped, escaped_lines

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client

FORMATS = ("text", "json", "csv", "xlsx", "html", "pdf")
BINARY = ("xlsx", "pdf")
TO_FILE = "Write it to a file: add --output FILE."


def main(argv: Sequence[str]) -> int:
    """Returns 0, or 125 when the request failed or the file can't be written."""
    from gpucoord_site.cli.client import RequestFailed

    options = _parser().parse_args(argv)
    if options.tag:
        return _by_tag(options)
    try:
        if options.format in BINARY and not options.output and sys.stdout.isatty():
            raise RequestFailed(f"A terminal can't show {options.format}. {TO_FILE}")
        with closing(connection.connect(options)) as client:
            write(client.report(query(options)), options.output)
    except BrokenPipeError:
        raise
    except (RequestFailed, token_file.UnsafeToken, OSError) as error:
        sys.stderr.write(f"gpucoord: {escaped_lines(str(error))}\n")
        return 125
    return 0


def _by_tag(options: Namespace) -> int:
    if options.format not in ("text", "json", "csv") or options.scope:
        connection.complain("A report by tag is text, json or csv, of all users or --user NAME.")
        return 125
    parameters = {
        "tag": options.tag,
        "last": options.last,
        "from": options.begin,
        "to": options.end,
        "user": options.user,
    }
    given = {name: value for name, value in parameters.items() if value}

    def work(client: Client) -> int:
        if options.format == "csv":
            write(client.report_by_tag_csv(given), options.output)
            return 0
        answer = client.report_by_tag(given)
        text = "\n".join(map(escaped, tag_lines(answer)))
        write(
            (json.dumps(answer, indent=2) if options.format == "json" else text).encode() + b"\n",
            options.output,
        )
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
    parameters = {
        "last": options.last,
        "from": options.begin,
        "to": options.end,
        "scope": scope,
        "format": options.format,
    }
    return {name: value for name, value in parameters.items() if value}


def add_choice(parser: ArgumentParser) -> None:
    """The options that say what the report is about."""
    add = parser.add_argument
    add("--last", help="length such as 24h, 7d or 4w, or day, week or month (default: 24h)")
    add("--from", dest="begin", metavar="TIME", help="start of the period instead of --last")
    add("--to", dest="end", metavar="TIME", help="end of the period (default: now)")
    add("--user", metavar="NAME", help="only this user")
    add("--scope", help="one of all, user:NAME, group:NAME, gpu:UUID and host:NAME (default: all)")
    add("--format", choices=FORMATS, default="text", help="format (default: text)")
    same = "the same as --format json"
    add("--json", dest="format", action="store_const", const="json", help=same)
    add("--output", "-o", metavar="FILE", help="write to this file instead of standard output")


def write(content: bytes, output: str | None) -> None:
    if output:
        Path(output).write_bytes(content)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def _parser() -> ArgumentParser:
    parser = Parser(
        prog="gpucoord report",
        description="Print a report of GPU usage, fair share and violations.",
    )
    add_choice(parser)
    text = "GPU-hours by the values of this tag of jobs, such as project"
    parser.add_argument("--tag", metavar="NAME", help=text)
    connection.add_options(parser)
    return parser


PARSERS = {"report": _parser}
