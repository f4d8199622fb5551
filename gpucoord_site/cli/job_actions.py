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
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import connection
from gpucoord_site.cli.commands import (
    CLEAN_ENV,
    JOB,
    JOBS,
    REFUSED,
    TIMED_OUT,
    Argument,
    Command,
    arg,
    clock_time,
    command,
    complain,
    count,
    in_words,
    number,
    show,
    shown_time,
    variable,
)
from gpucoord_site.cli.connection import SERVER
from monitor.facts.input_rules import escaped
from scheduler.facts.units import parse_duration

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client, Output
    from gpucoord_site.cli.follow import ForeignOutput

Json = dict[str, Any]
# The answer, and a sentence about it.
Acted = tuple[Json, str]
BLANK_CHANGE = "the value is blank; --reset {name} resets it to its default"
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
ALL_WAITING = arg("--array", "all waiting jobs of their arrays")


def acts(
    name: str, description: str, *arguments: Argument
) -> Callable[[Callable[[Client, int, Namespace], Acted]], Command]:
    """Declares the function below as a command; it acts on one job."""

    def made(act: Callable[[Client, int, Namespace], Acted]) -> Command:
        def run(options: Namespace) -> int:
            return _each(options, lambda client, job: act(client, job, options))

        return Command(name, description, arguments, run, {})

    return made


def _each(options: Namespace, act: Callable[[Client, int], Acted]) -> int:
    """Act on each job, and print the answers or the sentences. 1 when a job was refused."""
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
                complain(f"job {job}: {error}")
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


@command(
    "cancel",
    "Cancel jobs. A running job gets SIGTERM, then SIGKILL.",
    *SERVER,
    arg("jobs JOB", "numbers of jobs", type=count, nargs="*"),
    arg("--array", "all jobs of the arrays of these jobs"),
    arg("--mine", "all of your own jobs"),
)
def cancel(options: Namespace) -> int:
    if not options.jobs and not options.mine:
        raise ArgumentTypeError("name jobs, or --mine for all of your own")

    def act(client: Client, job: int) -> Acted:
        done = client.cancel(job, array=options.array)
        subject = f"array of job {job}" if options.array else f"job {job}"
        text = f"{subject}: cancelled" if done else f"{subject}: had ended, or is being stopped"
        return {"id": job, "cancelled": done}, text

    return _each(options, act)


@acts(
    "hold",
    "Hold waiting jobs until they are released.",
    *SERVER,
    JOBS,
    ALL_WAITING,
    arg("--reason TEXT", "visible to all users", default=""),
)
def hold(client: Client, job: int, options: Namespace) -> Acted:
    from gpucoord_site.cli.client import RequestFailed

    answer = client.hold(job, options.reason, array=options.array)
    if not answer["held"] and not options.array:
        raise RequestFailed("It does not wait any more; only waiting jobs can be held.")
    return answer, f"job {job}: {answer['held'] or 'does not wait any more'}"


@acts(
    "release",
    "Release held jobs.",
    *SERVER,
    JOBS,
    arg("--array", "all held jobs of their arrays"),
)
def release(client: Client, job: int, options: Namespace) -> Acted:
    answer = client.release(job, array=options.array)
    return answer, f"job {job}: {answer['held'] or 'is no longer held'}"


@acts("requeue", "Stop running jobs and put them back into the queue.", *SERVER, JOBS)
def requeue(client: Client, job: int, options: Namespace) -> Acted:
    done = client.requeue(job)
    text = "stops and waits again" if done else "waits already, or is being stopped"
    return {"id": job, "requeued": done}, f"job {job}: {text}"


@command(
    "resubmit",
    "Submit ended jobs of your own again, with the same request. Jobs that had the environment"
    " of a shell get that of this shell.",
    *SERVER,
    JOBS,
    arg(
        "--env NAME=VALUE",
        "a variable; without =VALUE its value in this shell; may be repeated"
        " (default: variables of the job that this shell has)",
        action="append",
        default=[],
        type=variable,
    ),
    CLEAN_ENV,
    arg("--stdin", "give the jobs the standard input of this command"),
)
def resubmit(options: Namespace) -> int:
    from gpucoord_site.cli.environment import EnvironmentTooLarge

    chosen = dict(options.env)
    data = sys.stdin.buffer.read() if options.stdin else b""
    try:
        deleted = _environment(options)
    except EnvironmentTooLarge as error:
        return complain(str(error))
    if data:
        deleted["stdin_base64"] = base64.b64encode(data).decode()

    def act(client: Client, job: int) -> Acted:
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


@acts(
    "priority",
    "Change the priority of waiting jobs.",
    *SERVER,
    arg("priority PRIORITY", "1 (background) to 5", type=int, choices=range(1, 6)),
    JOBS,
    ALL_WAITING,
)
def priority(client: Client, job: int, options: Namespace) -> Acted:
    changed = client.change(job, array=options.array, priority=options.priority)
    return changed, f"job {job}: priority {options.priority}"


@command(
    "change",
    "Change waiting jobs.",
    *SERVER,
    JOBS,
    ALL_WAITING,
    arg("--name NAME", "new name"),
    arg("--time-limit TIME", "new time limit"),
    arg("--estimate TIME", "new estimate"),
    arg("--gpu-memory SIZE", "new memory on each GPU"),
    arg("--memory SIZE", "new limit of host memory"),
    arg("--host HOST", "new host; any: the one that can start it first"),
    arg("--begin TIME", "new earliest start", type=clock_time),
    arg("--cpus N", "new limit of CPUs", type=number),
    arg("--tags NAME=TEXT", "new tags instead of all others", action="append"),
    arg(
        "--reset FIELD",
        "reset a field to its default, such as time-limit; may be repeated",
        action="append",
        default=[],
        choices=[name.replace("_", "-") for name in CHANGED],
    ),
    blank=BLANK_CHANGE,
)
def change(options: Namespace) -> int:
    fields = {n: value for n in CHANGED if (value := getattr(options, n)) is not None}
    reset = {name.replace("-", "_") for name in options.reset}
    if both := reset & fields.keys():
        text = f"{', '.join(sorted(both))}: give either a value or --reset"
        raise ArgumentTypeError(text)
    fields |= dict.fromkeys(sorted(reset))
    if not fields:
        text = "name a change, such as --time-limit 2h or --reset time-limit"
        raise ArgumentTypeError(text)
    words = ", ".join(map(_changed_to, fields, fields.values()))

    def act(client: Client, job: int) -> Acted:
        changed = client.change(job, array=options.array, **fields)
        return changed, f"job {job}: changed {words}"

    return _each(options, act)


def _changed_to(name: str, value: Any) -> str:
    words = name.replace("_", " ")
    return f"{words} to {shown_time(value)}" if name == "begin" and value else words


def _seconds(word: str) -> float:
    return float(word) if word.isdecimal() else parse_duration(word).total_seconds()


@command(
    "wait",
    "Wait until jobs have ended; return the highest exit code, as `gpucoord submit` does.",
    *SERVER,
    JOBS,
    arg("--timeout TIME", "exit with 124 after it", type=in_words(_seconds)),
    arg("--quiet -q", "print nothing"),
)
def wait(options: Namespace) -> int:
    """The highest exit code of the jobs, as `submit` returns it; 124 after --timeout."""
    from gpucoord_site.cli.follow import ending

    until = None if options.timeout is None else time.monotonic() + options.timeout

    def work(client: Client) -> int:
        codes = []
        for job_id in options.jobs:
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                job = client.wait(job_id, left)
            except TimeoutError as error:
                return complain(str(error), TIMED_OUT)
            code, text = ending(job)
            codes.append(code)
            if options.json:
                sys.stdout.write(f"{json.dumps(job)}\n")
            elif not options.quiet:
                sys.stdout.write(f"job {job_id}: {escaped(text or 'succeeded')}\n")
        return max(codes)

    return connection.run(options, work)


@command(
    "logs",
    "Print the output of a job.",
    *SERVER,
    JOB,
    arg("--follow -f", "go on until the job ends"),
    arg("--tail BYTES", "only this number of bytes from the end", type=count),
    arg("--attempt N", "number of an earlier attempt", type=count),
)
def logs(options: Namespace) -> int:
    """Print the output of a job; with --follow until its end, whose exit code is returned.

    With --json, one object after the output has been read, and with --follow after the end.
    """
    if options.follow and options.attempt:
        text = "--attempt names an earlier attempt, which can't be followed"
        raise ArgumentTypeError(text)

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
    return show(options, answer, ())


def _foreign_output(client: Client, job_id: int) -> ForeignOutput | None:
    """Set if another user's output would reach this terminal; only operators can read it."""
    from gpucoord_site.cli.follow import ForeignOutput

    if not sys.stdout.isatty() or client.job(job_id)["owner"] == client.quota()["name"]:
        return None
    return ForeignOutput()
