"""`gpucoord quota [set USER]`: show a quota and its current usage, or change it. No Django."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from gpucoord_site.cli import connection
from gpucoord_site.cli.parsing import Parser
from scheduler.facts.units import minutes_left, minutes_taken, parse_bytes, size

UNCHANGED = object()
LABELS = {
    "gpu_minutes": "GPU-minutes today",
    "gpus": "GPUs",
    "memory_bytes": "GPU memory",
    "jobs": "running jobs",
    "queued": "waiting jobs",
}
RIGHTS = {
    "entitlement_pct": "entitlement",
    "target_share_pct": "target share",
    "use_pct": "use now",
}


# Of the options that change a limit: the field, how its value is read, and the help.
CHANGES: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "share": ("share_pct", connection.number, "percent of the GPUs, as a weight"),
    "gpu-minutes": ("gpu_minutes", connection.number, "GPU-minutes a day"),
    "gpus": ("gpus", connection.count, "GPUs at a time"),
    "jobs": ("jobs", connection.count, "running jobs"),
    "memory": ("memory_bytes", parse_bytes, "GPU memory at a time, such as 80GiB"),
    "queued": ("queued", connection.count, "waiting jobs"),
    "priority": ("priority", connection.count, "highest priority, 1 to 5"),
}


def main(argv: Sequence[str]) -> int:
    """Returns 0, 2 with wrong options, or 125 when the request failed."""
    options = _parser().parse_args(argv)
    fields = {name.replace("-", "_"): field for name, (field, _, _) in CHANGES.items()}
    limits = {
        field: getattr(options, name)
        for name, field in fields.items()
        if getattr(options, name) is not UNCHANGED
    }
    if problem := _problem(options, limits):
        connection.complain(problem)
        return 2
    if options.action is None:
        return connection.tell(options, lambda client: client.quota(options.user), lines)
    return connection.tell(options, lambda client: client.set_quota(options.name, **limits), lines)


def _problem(options: Namespace, limits: dict[str, Any]) -> str | None:
    if options.action is None:
        return "Limits are changed by `gpucoord quota set USER`." if limits else None
    if options.name is None or options.user is not None:
        return "Write the user behind set: gpucoord quota set USER --share 30"
    return None if limits else "Write a limit to change, such as --share 30 or --gpu-minutes 600."


def _or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def limit(text: str) -> Any:
        try:
            return None if text == "none" else read(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return limit


def lines(answer: dict[str, Any]) -> Iterator[str]:
    """The answer in words."""
    yield f"{answer['name']} uses now:"
    for name, label in LABELS.items():
        yield f"  {label:<18} {_of(name, answer[name])}"
    if (left := answer["gpu_minutes_left"]) is not None:
        yield f"  {'still left today':<18} {minutes_left(left):g} GPU-minutes"
    # An older service does not say them.
    for name, label in RIGHTS.items():
        if answer.get(name) is not None:
            yield f"  {label:<18} {answer[name]:.3g} % of the GPUs"
    if answer["share_pct"] is not None:
        reserve = f"{answer['reserved_pct']:g} % of it for priorities 4 and 5"
        share = f"{answer['share_pct']:g} % of the GPUs"
        if answer.get("share_is_limit"):
            share += " at most"
        yield f"  {'share of the quota':<18} {share}, {reserve}"
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
    parser = Parser(
        prog="gpucoord quota", description="Say what you may use, and what of it you use now."
    )
    parser.add_argument("--user", metavar="NAME", help="show another user (operators only)")
    parser.add_argument(
        "action",
        nargs="?",
        choices=("set",),
        help="change the own quota of a user (operators only)",
    )
    parser.add_argument("name", nargs="?", metavar="USER", help="the user whose quota is changed")
    group = parser.add_argument_group("limits for set; none = no limit")
    for name, (_, read, text) in CHANGES.items():
        group.add_argument(
            f"--{name}", metavar="N", type=_or_none(read), default=UNCHANGED, help=text
        )
    connection.add_json(parser)
    connection.add_options(parser)
    return parser


PARSERS = {"quota": _parser}
