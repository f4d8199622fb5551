"""`gpucoord cancel`, `hold`, `release`, `requeue`, `resubmit`, `priority`, `change`, `wait`
and `logs`.

Each job is acted on by itself: one that is refused does not stop the others.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import connection
from gpucoord_site.cli.parsing import BLANK_CHANGE, Parser, clock_time, shown_time
from monitor.facts.input_rules import escaped

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client, Output
    from gpucoord_site.cli.follow import ForeignOutput

Json = dict[str, Any]
REFUSED, TIMED_OUT, OURS = 1, 124, 125
# The fields of `change`.
CHANGED = (
    "name",
    "time_limit",
    "estimate",
    "gpu_memory",
    "memory",
    "cpus",
    "begin",
    "host",
    "tags",
)


def cancel(argv: Sequence[str]) -> int:
    options = cancel_parser().parse_args(argv)
    if not options.jobs and not options.mine:
        cancel_parser().error("name jobs, or --mine for all of your own")

    def act(client: Client, job: int) -> tuple[Json, str]:
        done = client.cancel(job, array=options.array)
        subject = f"array of job {job}" if options.array else f"job {job}"
        text = f"{subject}: cancelled" if done else f"{subject}: had ended, or is being stopped"
        return {"id": job, "cancelled": done}, text

    return _each(options, act)


def hold(argv: Sequence[str]) -> int:
    """1 when a job does not wait any more."""
    from gpucoord_site.cli.client import RequestFailed

    options = hold_parser().parse_args(argv)

    def act(client: Client, job: int) -> tuple[Json, str]:
        answer = client.hold(job, options.reason, array=options.array)
        if not answer["held"] and not options.array:
            raise RequestFailed("It does not wait any more; only waiting jobs can be held.")
        return answer, f"job {job}: {answer['held'] or 'does not wait any more'}"

    return _each(options, act)


def release(argv: Sequence[str]) -> int:
    options = release_parser().parse_args(argv)

    def act(client: Client, job: int) -> tuple[Json, str]:
        answer = client.release(job, array=options.array)
        return answer, f"job {job}: {answer['held'] or 'is no longer held'}"

    return _each(options, act)


def requeue(argv: Sequence[str]) -> int:
    options = requeue_parser().parse_args(argv)

    def act(client: Client, job: int) -> tuple[Json, str]:
        done = client.requeue(job)
        text = "stops and waits again" if done else "waits already, or is being stopped"
        return {"id": job, "requeued": done}, f"job {job}: {text}"

    return _each(options, act)


def resubmit(argv: Sequence[str]) -> int:
    from gpucoord_site.cli.environment import EnvironmentTooLarge

    options = resubmit_parser().parse_args(argv)
    chosen = dict(options.env)
    data = sys.stdin.buffer.read() if options.stdin else b""
    try:
        deleted = _environment(options)
    except EnvironmentTooLarge as error:
        connection.complain(str(error))
        return OURS
    if data:
        deleted["stdin_base64"] = base64.b64encode(data).decode()

    def act(client: Client, job: int) -> tuple[Json, str]:
        names = client.job(job)["env_names"] or []
        here = {name: os.environ[name] for name in names if name in os.environ}
        new = client.resubmit(job, env=here | chosen, **deleted)
        return {"id": job, "resubmitted": new}, f"job {job}: submitted again as job {new}"

    return _each(options, act)


def _environment(options: Namespace) -> Json:
    """That of this shell, if the server is on this machine; it counts for jobs that had one."""
    from gpucoord_site.cli.submit import environment_here, is_local

    if options.clean_env:
        return {"environment": {}}
    return environment_here(options) if is_local(options) else {}


def priority(argv: Sequence[str]) -> int:
    options = priority_parser().parse_args(argv)

    def act(client: Client, job: int) -> tuple[Json, str]:
        changed = client.change(job, array=options.array, priority=options.priority)
        return changed, f"job {job}: priority {options.priority}"

    return _each(options, act)


def change(argv: Sequence[str]) -> int:
    options = change_parser().parse_args(argv)
    fields = {n: value for n in CHANGED if (value := getattr(options, n)) is not None}
    reset = {name.replace("-", "_") for name in options.reset}
    if both := reset & fields.keys():
        change_parser().error(f"{', '.join(sorted(both))}: give either a value or --reset")
    fields |= dict.fromkeys(sorted(reset))
    if not fields:
        change_parser().error("name a change, such as --time-limit 2h or --reset time-limit")
    words = ", ".join(map(_changed_to, fields, fields.values()))

    def act(client: Client, job: int) -> tuple[Json, str]:
        changed = client.change(job, array=options.array, **fields)
        return changed, f"job {job}: changed {words}"

    return _each(options, act)


def _changed_to(name: str, value: Any) -> str:
    words = name.replace("_", " ")
    return f"{words} to {shown_time(value)}" if name == "begin" and value else words


def wait(argv: Sequence[str]) -> int:
    """The highest exit code of the jobs, as `submit` returns it; 124 after --timeout."""
    from gpucoord_site.cli.follow import ending

    options = wait_parser().parse_args(argv)
    until = None if options.timeout is None else time.monotonic() + options.timeout

    def work(client: Client) -> int:
        codes = []
        for number in options.jobs:
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                job = client.wait(number, left)
            except TimeoutError as error:
                connection.complain(str(error))
                return TIMED_OUT
            code, text = ending(job)
            codes.append(code)
            if options.json:
                sys.stdout.write(f"{json.dumps(job)}\n")
            elif not options.quiet:
                sys.stdout.write(f"job {number}: {escaped(text or 'succeeded')}\n")
        return max(codes)

    return connection.run(options, work)


def logs(argv: Sequence[str]) -> int:
    """Print the output of a job; with --follow until its end, whose exit code is returned.

    With --json, one object after the output has been read, and with --follow after the end.
    """
    options = logs_parser().parse_args(argv)
    if options.follow and options.attempt:
        logs_parser().error("--attempt names an earlier attempt, which can't be followed")

    def work(client: Client) -> int:
        if options.json:
            return _log_as_json(client, options)
        foreign = _foreign_output(client, options.job)
        if options.follow:
            return _follow_log(client, options, foreign)
        for output in _log(client, options):
            sys.stdout.buffer.write(foreign.feed(output.data) if foreign else output.data)
        sys.stdout.buffer.write(foreign.end() if foreign else b"")
        sys.stdout.buffer.flush()
        return 0

    return connection.run(options, work)


def _log(client: Client, options: Namespace) -> Iterator[Output]:
    offset, more = 0, True
    while more:
        output = client.log(options.job, offset, tail=options.tail, attempt=options.attempt)
        yield output
        offset, more = output.next, output.more and options.tail is None


def _follow_log(client: Client, options: Namespace, foreign: ForeignOutput | None) -> int:
    from gpucoord_site.cli.follow import Follower

    offset = 0
    if options.tail:
        output = client.log(options.job, tail=options.tail)
        offset = output.next - len(output.data)
    return Follower(client, options.job, starts_with="", offset=offset, foreign=foreign).follow()


def _log_as_json(client: Client, options: Namespace) -> int:
    job = client.wait(options.job) if options.follow else client.job(options.job)
    data = b"".join(output.data for output in _log(client, options))
    answer = {"id": job["id"], "state": job["state"], "output": data.decode(errors="replace")}
    sys.stdout.write(f"{json.dumps(answer, indent=2)}\n")
    return 0


def _foreign_output(client: Client, job_id: int) -> ForeignOutput | None:
    """Set if another user's output would reach this terminal; only operators can read it."""
    from gpucoord_site.cli.follow import ForeignOutput

    if not sys.stdout.isatty() or client.job(job_id)["owner"] == client.quota()["name"]:
        return None
    return ForeignOutput()


def _each(options: Namespace, act: Callable[[Client, int], tuple[Json, str]]) -> int:
    """1 when a job was refused."""
    from gpucoord_site.cli.client import NotReachable, RequestFailed

    def work(client: Client) -> int:
        refused, answers = 0, []
        jobs = options.jobs
        if getattr(options, "mine", False):
            jobs = [job["id"] for job in client.jobs(owner="me", state="open")]
        for job in jobs:
            try:
                answer, text = act(client, job)
            except NotReachable:
                raise
            except RequestFailed as error:
                refused += 1
                connection.complain(f"job {job}: {error}")
                continue
            answers.append(answer)
            if not options.json:
                sys.stdout.write(f"{escaped(text)}\n")
        if options.json:
            sys.stdout.write(f"{json.dumps(answers, indent=2)}\n")
        elif not jobs:
            sys.stdout.write("You have no running or waiting jobs.\n")
        return REFUSED if refused else 0

    return connection.run(options, work)


def _seconds(word: str) -> float:
    from scheduler.facts.units import parse_duration

    try:
        return float(word) if word.isdecimal() else parse_duration(word).total_seconds()
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def _parser(name: str, description: str, *, array: str = "", count: str = "+") -> Parser:
    parser = connection.parser(name, description)
    parser.add_argument(
        "jobs", type=connection.count, nargs=count, metavar="JOB", help="numbers of jobs"
    )
    if array:
        parser.add_argument("--array", action="store_true", help=array)
    return parser


def cancel_parser() -> ArgumentParser:
    text = "Cancel jobs. A running job gets SIGTERM, then SIGKILL."
    parser = _parser("cancel", text, array="all jobs of the arrays of these jobs", count="*")
    parser.add_argument("--mine", action="store_true", help="all of your own jobs")
    return parser


def hold_parser() -> ArgumentParser:
    text = "Hold waiting jobs until they are released."
    parser = _parser("hold", text, array="all waiting jobs of their arrays")
    parser.add_argument("--reason", default="", metavar="TEXT", help="visible to all users")
    return parser


def release_parser() -> ArgumentParser:
    return _parser("release", "Release held jobs.", array="all held jobs of their arrays")


def requeue_parser() -> ArgumentParser:
    return _parser("requeue", "Stop running jobs and put them back into the queue.")


def resubmit_parser() -> ArgumentParser:
    text = (
        "Submit ended jobs of your own again, with the same request. Jobs that had the environment"
        " of a shell get that of this shell."
    )
    parser = _parser("resubmit", text)
    add = parser.add_argument
    add(
        "--env",
        action="append",
        default=[],
        type=connection.variable,
        metavar="NAME=VALUE",
        help="a variable; without =VALUE its value in this shell; may be repeated"
        " (default: variables of the job that this shell has)",
    )
    add(
        "--clean-env",
        action="store_true",
        help="do not pass this shell's environment on, only --env",
    )
    add("--stdin", action="store_true", help="give the jobs the standard input of this command")
    return parser


def priority_parser() -> ArgumentParser:
    parser = connection.parser("priority", "Change the priority of waiting jobs.")
    add = parser.add_argument
    add("priority", type=int, choices=range(1, 6), metavar="PRIORITY", help="1 (background) to 5")
    add("jobs", type=connection.count, nargs="+", metavar="JOB", help="numbers of jobs")
    add("--array", action="store_true", help="all waiting jobs of their arrays")
    return parser


def change_parser() -> ArgumentParser:
    text = "Change waiting jobs."
    parser = _parser("change", text, array="all waiting jobs of their arrays")
    parser.blank = BLANK_CHANGE
    add = parser.add_argument
    for option, metavar, words in (
        ("--name", "NAME", "name"),
        ("--time-limit", "TIME", "time limit"),
        ("--estimate", "TIME", "estimate"),
        ("--gpu-memory", "SIZE", "memory on each GPU"),
        ("--memory", "SIZE", "limit of host memory"),
        ("--host", "HOST", "host; any: the one that can start it first"),
    ):
        add(option, metavar=metavar, help=f"new {words}")
    add("--begin", type=clock_time, metavar="TIME", help="new earliest start")
    add("--cpus", type=connection.number, metavar="N", help="new limit of CPUs")
    add("--tags", action="append", metavar="NAME=TEXT", help="new tags instead of all others")
    add(
        "--reset",
        action="append",
        default=[],
        choices=[name.replace("_", "-") for name in CHANGED],
        metavar="FIELD",
        help="reset a field to its default, such as time-limit; may be repeated",
    )
    return parser


def wait_parser() -> ArgumentParser:
    text = "Wait until jobs have ended; return the highest exit code, as `gpucoord submit` does."
    parser = _parser("wait", text)
    parser.add_argument("--timeout", type=_seconds, metavar="TIME", help="exit with 124 after it")
    parser.add_argument("--quiet", "-q", action="store_true", help="print nothing")
    return parser


def logs_parser() -> ArgumentParser:
    parser = connection.parser("logs", "Print the output of a job.")
    add = parser.add_argument
    add("job", type=connection.count, metavar="JOB", help="the job's number")
    add("--follow", "-f", action="store_true", help="go on until the job ends")
    add(
        "--tail",
        type=connection.count,
        metavar="BYTES",
        help="only this number of bytes from the end",
    )
    add("--attempt", type=connection.count, metavar="N", help="number of an earlier attempt")
    return parser


PARSERS = {
    "cancel": cancel_parser,
    "hold": hold_parser,
    "release": release_parser,
    "requeue": requeue_parser,
    "resubmit": resubmit_parser,
    "priority": priority_parser,
    "change": change_parser,
    "wait": wait_parser,
    "logs": logs_parser,
}
