"""`gpucoord quota`: the quota of a user and its current usage. Needs no Django."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from gpucoord_site.cli import connection
from scheduler.facts.units import minutes_left, minutes_taken, size

LABELS = {
    "gpu_minutes": "GPU-minutes today",
    "gpus": "GPUs",
    "memory_bytes": "GPU memory",
    "jobs": "running jobs",
    "queued": "waiting jobs",
}


def main(argv: Sequence[str]) -> int:
    """Returns 0, or 125 when the request failed."""
    options = _parser().parse_args(argv)
    return connection.tell(options, lambda client: client.quota(options.user), lines)


def lines(answer: dict[str, Any]) -> Iterator[str]:
    """The answer in words."""
    yield f"{answer['name']} uses now:"
    for name, label in LABELS.items():
        yield f"  {label:<18} {_of(name, answer[name])}"
    if (left := answer["gpu_minutes_left"]) is not None:
        yield f"  {'still left today':<18} {minutes_left(left):g} GPU-minutes"
    if answer["share_pct"] is not None:
        reserve = f"{answer['reserved_pct']:g} % of it for priorities 4 and 5"
        share = f"{answer['share_pct']:g} % of the GPUs"
        if answer.get("share_is_limit"):
            share += " at most"
        yield f"  {'entitled share':<18} {share}, {reserve}"
    if answer["priority"] is not None:
        yield f"  {'highest priority':<18} {answer['priority']}"
    end = datetime.fromisoformat(answer["resets_at"])
    yield f"The day ends {end:%a} {end.day} {end:%b %H:%M} ({answer['zone']})."
    # An older service does not say it.
    yield from answer.get("decided_elsewhere", [])


def _of(name: str, limit: dict[str, Any]) -> str:
    used = _amount(name, limit["used"])
    if limit["most"] is None:
        return f"{used} (no limit)"
    committed = limit["committed"]
    promised = f", {minutes_taken(committed):g} promised to running jobs" if committed else ""
    return f"{used} of {_amount(name, limit['most'])}{promised}"


def _amount(name: str, value: float) -> str:
    if name == "gpu_minutes":
        return f"{minutes_taken(value):g}"
    return str(size(int(value))) if name == "memory_bytes" else f"{value:.0f}"


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="gpucoord quota", description="Say what you may use, and what of it you use now."
    )
    parser.add_argument("--user", metavar="NAME", help="another user (operators only)")
    connection.add_json(parser)
    connection.add_options(parser)
    return parser


PARSERS = {"quota": _parser}
