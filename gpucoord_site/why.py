"""`gpucoord why JOB`: why a job waits, when it may start, what decides. Needs no Django."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from gpucoord_site import connecting

BAR = 20


def main(argv: Sequence[str]) -> int:
    """Returns 0, or 125 when gpucoord can't be asked."""
    asked = _parser().parse_args(argv)
    return connecting.tell(asked, lambda client: client.why(asked.job), lines)


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The answer as a person reads it."""
    yield f"job {found['id']} ({found['name']}): {found['state']}"
    if found["state"] != "queued" or not found["blockers"]:
        yield found["text"]
    if found["state"] != "queued":
        return
    yield from _outlook(found)
    yield from _reasons(found)
    if found["factors"]:
        yield "what decides about its place:"
        yield from (f"  {_factor(factor)}" for factor in found["factors"])


def what_if_lines(found: dict[str, Any]) -> Iterator[str]:
    """What would become of a job, had it been submitted."""
    if found["starts_now"]:
        yield "it would start now"
    else:
        yield "it would wait"
        yield from _outlook(found)
        yield from _reasons(found)
    yield "nothing was submitted"


def _reasons(found: dict[str, Any]) -> Iterator[str]:
    for tier, group in groupby(found["blockers"], key=lambda blocker: blocker["tier"]):
        yield f"{tier or 'reasons'}:"
        yield from (f"  {line}" for blocker in group for line in _reason(blocker))


def _outlook(found: dict[str, Any]) -> Iterator[str]:
    if found["position"]:
        yield f"number {found['position']} in the queue"
    if found["starts_p50"]:
        late = found["starts_p90"]
        before = f", in nine of ten cases before {_time(late)}" if late else ""
        yield f"starts ~{_time(found['starts_p50'])}{before}"
    else:
        yield "nobody can tell when it starts"


def _reason(blocker: dict[str, Any]) -> Iterator[str]:
    yield blocker["text"]
    until = blocker["until"]
    details = {
        "asked": blocker["requested"],
        "there": blocker["available"],
        "held by": blocker["holder"],
        "until": until and _time(until),
    }
    told = [f"{word} {value}" for word, value in details.items() if value]
    yield f"  [{'; '.join([blocker['code'], *told])}]"


def _factor(factor: dict[str, Any]) -> str:
    filled = round(BAR * min(1.0, max(0.0, factor["value"])))
    return f"{factor['name']:<12} {'█' * filled}{'·' * (BAR - filled)} {factor['text']}"


def _time(iso: str) -> str:
    """In the zone of whoever asks."""
    here = datetime.fromisoformat(iso).astimezone()
    return f"{here:%a} {here.day} {here:%b %H:%M %Z}"


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="gpucoord why", description="Say why a job waits, and when it may start."
    )
    parser.add_argument("job", type=int, metavar="JOB", help="the job's number")
    connecting.add_json(parser)
    connecting.add_options(parser)
    return parser
