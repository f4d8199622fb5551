"""`gpucoord why JOB`: why a job waits, when it may start, what would help. Needs no Django."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from gpucoord_site.cli import connection
from gpucoord_site.cli.parsing import Parser
from monitor.facts.formats import sentence_parts

BAR = 20


def main(argv: Sequence[str]) -> int:
    """Returns 0, or 125 when the request failed."""
    options = _parser().parse_args(argv)
    return connection.tell(options, lambda client: client.why(options.job), lines)


def lines(answer: dict[str, Any]) -> Iterator[str]:
    """The answer in words."""
    yield f"job {answer['id']} ({answer['name']}): {answer['state']}"
    if answer["state"] != "queued" or not answer["blockers"]:
        yield _local(answer["text"])
    if answer["state"] != "queued":
        return
    yield from _headline(answer)
    yield from _expected_start(answer)
    yield from _advice(answer)
    yield from _reasons(answer)
    if answer["factors"]:
        yield "priority factors:"
        yield from (f"  {_factor(factor)}" for factor in answer["factors"])


def what_if_lines(answer: dict[str, Any]) -> Iterator[str]:
    """The expected start of a job that was not submitted."""
    if answer["starts_now"]:
        yield "it would start now"
    else:
        yield "it would wait"
        yield from _headline(answer)
        yield from _expected_start(answer)
        yield from _reasons(answer)
    if suggestion := answer.get("gpu_memory_suggestion"):
        yield suggestion["text"]
    yield "nothing was submitted"


def _headline(answer: dict[str, Any]) -> Iterator[str]:
    """The main reason, and what lifts it."""
    first = answer.get("headline")
    if first:
        yield _local(f"{first['headline']} {first['next_step']}".strip())


def _reasons(answer: dict[str, Any]) -> Iterator[str]:
    for tier, group in groupby(answer["blockers"], key=lambda blocker: blocker["tier"]):
        yield f"{tier or 'reasons'}:"
        yield from (f"  {line}" for blocker in group for line in _reason(blocker))


def _expected_start(answer: dict[str, Any]) -> Iterator[str]:
    if any(blocker.get("never") for blocker in answer["blockers"]):
        yield "it can't start as it is"
        return
    if answer["position"]:
        yield f"number {answer['position']} in the queue"
    if answer["starts_p50"]:
        late = answer["starts_p90"]
        before = f", in nine of ten cases before {_time(late)}" if late else ""
        yield f"starts ~{_time(answer['starts_p50'])}{before}"
    elif answer["starts_after"]:
        yield f"starts after ~{_time(answer['starts_after'])}"
    else:
        yield "start time unknown"


def _advice(answer: dict[str, Any]) -> Iterator[str]:
    """Changes that were planned to start it earlier."""
    helps = answer.get("advice") or []
    if helps:
        yield "to start it earlier:"
        yield from (_local(f"  {each['text']}") for each in helps)
    else:
        yield "no change of the request would start it earlier"


def _reason(blocker: dict[str, Any]) -> Iterator[str]:
    yield _local(blocker["text"])
    until, gpu = blocker["until"], blocker.get("gpu")
    details = {
        "requested": blocker["requested"],
        "on": None if gpu is None or blocker["available"] else f"GPU {gpu}",
        "available": blocker["available"],
        "held by": blocker["holder"],
        "until": until and _time(until),
    }
    known_details = [f"{word}: {value}" for word, value in details.items() if value]
    yield f"  [{'; '.join([blocker['code'], *known_details])}]"


def _factor(factor: dict[str, Any]) -> str:
    filled = round(BAR * min(1.0, max(0.0, factor["value"])))
    return f"{factor['name']:<12} {'█' * filled}{'·' * (BAR - filled)} {factor['text']}"


def _time(iso: str) -> str:
    """In the time zone of this computer."""
    return _words(datetime.fromisoformat(iso))


def _local(sentence: str) -> str:
    """The sentence with its times in the time zone of this computer."""
    parts = sentence_parts(sentence, datetime.now(UTC))
    return "".join(part if isinstance(part, str) else _words(part) for part in parts)


def _words(moment: datetime) -> str:
    local = moment.astimezone()
    day = f"{local:%a} {local.day} {local:%b}"
    year = "" if local.year == datetime.now(UTC).astimezone().year else f" {local.year}"
    return f"{day}{year} {local:%H:%M %Z}"


def _parser() -> ArgumentParser:
    parser = Parser(prog="gpucoord why", description="Say why a job waits, and when it may start.")
    parser.add_argument("job", type=connection.count, metavar="JOB", help="the job's number")
    connection.add_json(parser)
    connection.add_options(parser)
    return parser


PARSERS = {"why": _parser}
