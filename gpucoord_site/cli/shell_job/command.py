"""`gpucoord shell`: an interactive job with a terminal, as ssh gives one. Needs no Django."""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import connection, submit
from gpucoord_site.cli.environment import EnvironmentTooLarge

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client

OURS, CANCELLED = 125, 130
# The account's shell, as the server knows it. A remote one reads the profile for its PATH.
LOCAL_SHELL, REMOTE_SHELL = 'exec "${SHELL:-/bin/sh}"', 'exec "${SHELL:-/bin/sh}" -l'
# Of the terminal here, for the programs there.
PASSED_ON = ("TERM", "COLORTERM")
SHORTEST_S, LONGEST_S = 0.1, 1.0
RECORDED_WITHIN_S = 10.0
NO_TERMINAL = "gpucoord shell needs a terminal. Without one, use: gpucoord run -- COMMAND"
EPILOG = """\
The job has a terminal: window size, Ctrl-C and Ctrl-Z work as with ssh. The limits and quotas of
jobs hold. It is cancelled when its GPUs stay idle, after a warning. Enter and then ~. leaves it
running (inside ssh ~~. because ssh takes ~. itself); `gpucoord shell --attach JOB` connects again,
within 5 minutes unless operators changed it.
"""


def main(argv: Sequence[str]) -> int:
    """Returns the exit code of the job's command, or 125."""
    options = parser().parse_args(argv)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        connection.complain(NO_TERMINAL)
        return OURS
    try:
        body = None if options.attach else _body(options)
    except (EnvironmentTooLarge, submit.NotHere) as error:
        connection.complain(str(error))
        return OURS

    def work(client: Client) -> int:
        job_id = options.attach if body is None else client.submit(body)
        if body is not None:
            connection.complain(f"job {job_id} submitted")
        code = attend(client, job_id, is_own=body is not None)
        if options.json:
            sys.stdout.write(f"{json.dumps(client.job(job_id), indent=2)}\n")
        return code

    return connection.run(options, work)


def _body(options: Namespace) -> dict[str, Any]:
    options.detach, options.script = False, None
    here = submit.is_local(options)
    words = submit.words_of(options)
    if not words:
        words = [LOCAL_SHELL if here else REMOTE_SHELL]
        options.name = options.name or "shell"
    passed_on = [(name, os.environ[name]) for name in PASSED_ON if name in os.environ]
    options.env = [*passed_on, *options.env]
    return submit.body_of(options, words) | {"interactive": True}


def attend(
    client: Client,
    job_id: int,
    *,
    is_own: bool,
    on_start: Callable[[dict[str, Any]], None] = lambda _job: None,
) -> int:
    """Wait for the job's start, then connect until its end or until the user leaves."""
    from gpucoord_site.cli.client import NotReachable
    from gpucoord_site.cli.follow import ending
    from gpucoord_site.cli.shell_job.terminal import Left, NotRunning, TerminalFailed, connect

    try:
        job = _started(client, job_id)
    except KeyboardInterrupt:
        if is_own:
            client.cancel(job_id)
            connection.complain(f"job {job_id} cancelled")
        return CANCELLED
    if job["state"] != "finished":
        on_start(job)
    refused_until = time.monotonic() + RECORDED_WITHIN_S
    while job["state"] != "finished":
        try:
            connect(client, job_id)
            job = _recorded(client, job_id)
        except Left:
            again = f"gpucoord shell --attach {job_id}"
            connection.complain(f"job {job_id} goes on; connect again: {again}")
            return 0
        except NotRunning as error:
            if time.monotonic() > refused_until:
                connection.complain(str(error))
                return OURS
            time.sleep(SHORTEST_S)
            job = client.job(job_id)
        except TerminalFailed as error:
            connection.complain(str(error))
            return OURS
        except NotReachable as error:
            connection.complain(f"{error} Trying again; Ctrl-C ends this.")
            job = _reached(client, job_id)
    code, text = ending(job)
    if text:
        connection.complain(f"job {job_id} {text}")
    return code


def _started(client: Client, job_id: int) -> dict[str, Any]:
    """Say why it waits, until it runs or has ended."""
    said, pause_s = "", SHORTEST_S
    while (job := client.job(job_id))["state"] in ("queued", "starting"):
        why = " ".join(dict.fromkeys(blocker["text"] for blocker in job["blockers"]))
        if why and why != said:
            connection.complain(f"waits: {why}")
        said = why or said
        time.sleep(pause_s)
        pause_s = min(LONGEST_S, pause_s * 1.5)
    return job


def _recorded(client: Client, job_id: int) -> dict[str, Any]:
    """The job after its terminal was closed. Raises TerminalFailed if it goes on."""
    from gpucoord_site.cli.shell_job.terminal import TerminalFailed

    try:
        return client.wait(job_id, RECORDED_WITHIN_S)
    except TimeoutError:
        text = f"The terminal of job {job_id} is connected elsewhere, or its job was requeued."
        raise TerminalFailed(text) from None


def _reached(client: Client, job_id: int) -> dict[str, Any]:
    from gpucoord_site.cli.client import NotReachable

    while True:
        time.sleep(LONGEST_S)
        try:
            return client.job(job_id)
        except NotReachable:
            continue


def parser() -> ArgumentParser:
    made = submit.job_parser(
        "shell",
        usage="gpucoord shell [options] [-- COMMAND [ARGUMENT ...]]",
        description="Run your shell, or a command, as a job with a terminal.",
        epilog=EPILOG,
        leaves_out=("array", "array_limit", "script"),
    )
    connection.add_json(made)
    made.add_argument(
        "--attach", type=connection.count, metavar="JOB", help="connect to this running shell"
    )
    return made


PARSERS = {"shell": parser}
