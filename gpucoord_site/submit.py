"""`gpucoord submit -- COMMAND`: run a command as a job, as if it ran here. Needs no Django."""

from __future__ import annotations

import os
import shlex
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from gpucoord_site import connecting, token_file
from gpucoord_site.why import what_if_lines

# As docker has it: what failed is gpucoord, not the command.
OURS = 125
# Fields of the API that have an option of the same name.
SELDOM = (
    "capability",
    "model",
    "power",
    "on_gpu",
    "gpu_share",
    "cpus",
    "memory",
    "preemptible",
    "requeue",
    "yield_signal",
    "grace",
    "retries",
    "begin",
    "after",
    "after_success",
    "array",
    "array_limit",
)
EPILOG = """\
The job's output appears here, and its exit code becomes this command's. Ctrl-C asks whether to
cancel the job; a second Ctrl-C leaves it running. Exit codes of our own: 124 it ran into its time
limit, 125 gpucoord failed or refused, 128+N signal N ended it, 130 it was cancelled or left.
"""


def main(argv: Sequence[str]) -> int:
    """Returns the job's exit code, or one of ours."""
    asked = _parser().parse_args(argv)
    from gpucoord_site.client import UnableToAsk
    from gpucoord_site.following import Follower

    try:
        with closing(connecting.connect(asked)) as client:
            if asked.dry_run:
                found = client.what_if(_body(asked))
                sys.stdout.write("\n".join(what_if_lines(found)) + "\n")
                return 0
            job_id = client.submit(_body(asked))
            if not asked.detach:
                return Follower(client, job_id).follow()
        sys.stdout.write(f"{job_id}\n")
        return 0
    except (UnableToAsk, token_file.UnsafeToken) as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"gpucoord: {line}\n")
        return OURS


def _body(asked: Namespace) -> dict[str, Any]:
    """One word with spaces is a shell line, as `sh -c` takes it; more words run as they are."""
    words: list[str] = asked.command
    runs = {"command": words[0]} if len(words) == 1 else {"argv": words}
    fields = {
        "name": asked.name,
        "priority": asked.priority,
        "gpus": asked.gpus,
        "gpu_memory": asked.gpu_memory,
        "exclusive": asked.exclusive or None,
        "time_limit": asked.time_limit,
        "estimate": asked.estimate,
        **{name: getattr(asked, name) or None for name in SELDOM},
        "env": dict(asked.env) or None,
        "cwd": os.path.abspath(asked.cwd) if asked.cwd else _here(asked),  # noqa: PTH100
    }
    return runs | {name: value for name, value in fields.items() if value is not None}


def _here(asked: Namespace) -> str | None:
    """Where one stands, when the server is this machine: else its folders are others."""
    host = connecting.url(asked).partition("://")[2].partition("/")[0].rpartition("@")[2]
    name = host.removeprefix("[").partition("]")[0] if host.startswith("[") else host.split(":")[0]
    return os.getcwd() if name in {"127.0.0.1", "localhost", "::1"} else None  # noqa: PTH109


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="gpucoord submit",
        usage="gpucoord submit [options] -- COMMAND [ARGUMENT ...]",
        description="Run a command as a job and show its output.",
        epilog=EPILOG,
    )
    add = parser.add_argument
    add("command", nargs="+", metavar="COMMAND", help="one word with spaces is a shell line")
    add("--name", help="all can read it (default: the program and its first argument)")
    add("--priority", type=int, help="5 urgent, 4 high, 3 normal (default), 2 low, 1 background")
    add("--gpus", type=int, help="how many (default: 1; 0 for a job without a GPU)")
    add("--gpu-memory", metavar="SIZE", help="on each GPU, such as 20GiB")
    add("--exclusive", action="store_true", help="no other job on the same GPUs")
    add("--time-limit", metavar="TIME", help="stopped after this: 2h, 90min")
    add("--estimate", metavar="TIME", help="how long you think it takes")
    _add_choice_of_gpu(parser)
    _add_limits(parser)
    _add_when(parser)
    _add_manners(parser)
    add(
        "--env",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_variable,
        help="a variable; without =VALUE the one from here; may be repeated",
    )
    add("--cwd", metavar="FOLDER", help="where it starts (default: here, if the server is local)")
    connecting.add_options(parser)
    add("--dry-run", action="store_true", help="only say when it would start, and why not now")
    add("--detach", "-d", action="store_true", help="only print the job's number")
    return parser


def _add_choice_of_gpu(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("which GPU").add_argument
    add("--on-gpu", metavar="GPU", help="this one and no other: its number or UUID")
    add("--model", metavar="WORDS", help="words of its name, or a pattern: H100, 'RTX*'")
    add("--capability", metavar="X.Y", help="the least compute capability, such as 8.0")
    add("--power", type=float, metavar="RANK", help="the least power rank")
    add("--gpu-share", type=int, metavar="PERCENT", help="the most of a shared GPU's time")


def _add_limits(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("of the host").add_argument
    add("--cpus", type=float, metavar="N", help="at most so many, for all its processes together")
    add("--memory", metavar="SIZE", help="at most so much, such as 16GiB; else it is killed")


def _add_when(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("when").add_argument
    add("--begin", metavar="TIME", help="not before: 22:00, 'tomorrow 06:00', 'in 2h'")
    add("--after", metavar="JOBS", type=_numbers, help="after the end of these: 12,13")
    add("--after-success", metavar="JOBS", type=_numbers, help="after the success of these")
    add("--array", metavar="INDICES", help="a job for each: 0-9, 1,3,5 or 0-99%%4 (4 at a time)")
    add("--array-limit", type=int, metavar="N", help="how many of the array at a time")
    add("--retries", type=int, metavar="N", help="how often it is tried again after a failure")


def _add_manners(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("when its GPU is wanted").add_argument
    add("--preemptible", action="store_true", help="more important jobs may interrupt it")
    add("--requeue", action="store_true", help="then run it again from its start")
    add("--yield-signal", metavar="SIGNAL", help="tell it by USR1, USR2, INT, TERM or HUP, too")
    add("--grace", metavar="TIME", help="time to save its work, such as 60s")


def _numbers(text: str) -> list[int]:
    words = text.replace(",", " ").split()
    if not all(word.isdecimal() for word in words):
        raise ArgumentTypeError(f"{shlex.quote(text)} names no jobs; write their numbers: 12,13")
    return [int(word) for word in words]


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        if name not in os.environ:
            raise ArgumentTypeError(f"{shlex.quote(name)} is not set here; write NAME=VALUE")
        value = os.environ[name]
    return name, value
