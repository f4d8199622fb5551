"""`gpucoord shell` and `notebook`: interactive jobs with a terminal, as ssh gives one."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import connection, submit
from gpucoord_site.cli.commands import CANCELLED, arg, command, complain, count, show

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client

Json = dict[str, Any]
# The account's shell, as the server knows it. A remote one reads the profile for its PATH.
LOCAL_SHELL, REMOTE_SHELL = 'exec "${SHELL:-/bin/sh}"', 'exec "${SHELL:-/bin/sh}" -l'
# Of the terminal here, for the programs there.
PASSED_ON = ("TERM", "COLORTERM")
SHORTEST_S, LONGEST_S = 0.1, 1.0
RECORDED_WITHIN_S = 10.0
ARGUMENTS = tuple(submit.job_arguments(leaves_out=("array", "array_limit", "script")))
# Of options that the interactive commands do not have.
DEFAULTS = {"detach": False, "script": None}
NO_TERMINAL = "gpucoord shell needs a terminal. Without one, use: gpucoord run -- COMMAND"
EPILOG = """\
The job has a terminal: window size, Ctrl-C and Ctrl-Z work as with ssh. The limits and quotas of
jobs hold. It is cancelled when its GPUs stay idle, after a warning. Enter and then ~. leaves it
running (inside ssh ~~. because ssh takes ~. itself); `gpucoord shell --attach JOB` connects again,
within 5 minutes unless operators changed it.
"""


@command(
    "shell",
    "Run your shell, or a command, as a job with a terminal.",
    *ARGUMENTS,
    connection.JSON,
    arg("--attach JOB", "connect to this running shell", type=count),
    usage="gpucoord shell [options] [-- COMMAND [ARGUMENT ...]]",
    epilog=EPILOG,
    defaults=DEFAULTS,
)
def shell(options: Namespace) -> int:
    """Returns the exit code of the job's command, or 125."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return complain(NO_TERMINAL)
    body = None if options.attach else shell_body(options)

    def work(client: Client) -> int:
        job_id = options.attach if body is None else _submitted(client, body)
        code = attend(client, job_id, is_own=body is not None)
        if options.json:
            show(options, client.job(job_id), ())
        return code

    return connection.run(options, work)


def shell_body(options: Namespace) -> Json:
    here = submit.is_local(options)
    words = submit.words_of(options)
    if not words:
        words = [LOCAL_SHELL if here else REMOTE_SHELL]
        options.name = options.name or "shell"
    passed_on = [(name, os.environ[name]) for name in PASSED_ON if name in os.environ]
    options.env = [*passed_on, *options.env]
    return submit.body_of(options, words) | {"interactive": True}


def _submitted(client: Client, body: Json) -> int:
    job_id = client.submit(body)
    complain(f"job {job_id} submitted")
    return job_id


def attend(
    client: Client,
    job_id: int,
    *,
    is_own: bool,
    on_start: Callable[[Json], None] = lambda _job: None,
) -> int:
    """Wait for the job's start, then connect until its end or until the user leaves."""
    from gpucoord_site.cli.client import NotReachable
    from gpucoord_site.cli.follow import ending
    from gpucoord_site.cli.terminal import Left, NotRunning, TerminalFailed, connect

    try:
        job = _started(client, job_id)
    except KeyboardInterrupt:
        if is_own:
            client.cancel(job_id)
            complain(f"job {job_id} cancelled")
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
            complain(f"job {job_id} goes on; connect again: {again}")
            return 0
        except NotRunning as error:
            if time.monotonic() > refused_until:
                return complain(str(error))
            time.sleep(SHORTEST_S)
            job = client.job(job_id)
        except TerminalFailed as error:
            return complain(str(error))
        except NotReachable as error:
            complain(f"{error} Trying again; Ctrl-C ends this.")
            job = _reached(client, job_id)
    code, text = ending(job)
    if text:
        complain(f"job {job_id} {text}")
    return code


def _started(client: Client, job_id: int) -> Json:
    """Say why it waits, until it runs or has ended."""
    said, pause_s = "", SHORTEST_S
    while (job := client.job(job_id))["state"] in ("queued", "starting"):
        why = " ".join(dict.fromkeys(blocker["text"] for blocker in job["blockers"]))
        if why and why != said:
            complain(f"waits: {why}")
        said = why or said
        time.sleep(pause_s)
        pause_s = min(LONGEST_S, pause_s * 1.5)
    return job


def _recorded(client: Client, job_id: int) -> Json:
    """The job after its terminal was closed. Raises TerminalFailed if it goes on."""
    from gpucoord_site.cli.terminal import TerminalFailed

    try:
        return client.wait(job_id, RECORDED_WITHIN_S)
    except TimeoutError:
        text = f"The terminal of job {job_id} is connected elsewhere, or its job was requeued."
        raise TerminalFailed(text) from None


def _reached(client: Client, job_id: int) -> Json:
    from gpucoord_site.cli.client import NotReachable

    while True:
        time.sleep(LONGEST_S)
        try:
            return client.job(job_id)
        except NotReachable:
            continue


# `gpucoord notebook`: JupyterLab of the user's environment as an interactive job.

PROGRAM, NAME = "jupyter-lab", "notebook"
NO_NOTEBOOK_TERMINAL = "gpucoord notebook needs a terminal."
NOT_INSTALLED = (
    "JupyterLab is in no folder of PATH. Activate its environment, or install it:"
    " python -m pip install jupyterlab"
)
# The token is in JUPYTER_TOKEN, where other accounts do not see it. The port is the job's own.
SERVE = (
    f"exec {PROGRAM} --no-browser --ip=127.0.0.1 --ServerApp.port_retries=0"
    ' ${GPUCOORD_PORT:+"--port=$GPUCOORD_PORT"} "$@"'
)
NOTEBOOK_EPILOG = """\
It prints a line with the link, and the ssh command that makes it work on another computer. The
terminal shows the output of JupyterLab; Ctrl-C twice ends it. Enter and then ~. leaves it, and
`gpucoord shell --attach JOB` connects again; without a terminal the job ends after 5 minutes. It is
cancelled when its GPUs stay idle, after a warning in the terminal.
"""


@command(
    "notebook",
    "Run JupyterLab of this environment as a job.",
    *ARGUMENTS,
    usage="gpucoord notebook [options] [-- JUPYTER ARGUMENT ...]",
    epilog=NOTEBOOK_EPILOG,
    defaults=DEFAULTS,
)
def notebook(options: Namespace) -> int:
    """Returns the exit code of JupyterLab, or 125."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return complain(NO_NOTEBOOK_TERMINAL)
    if submit.is_local(options) and not options.host and not shutil.which(PROGRAM):
        return complain(NOT_INSTALLED)
    token = secrets.token_hex(24)
    body = notebook_body(options, token)

    def tell(job: Json) -> None:
        complain(how_to_open(job, token))

    return connection.run(
        options,
        lambda client: attend(client, _submitted(client, body), is_own=True, on_start=tell),
    )


def notebook_body(options: Namespace, token: str) -> Json:
    options.name = options.name or NAME
    options.env = [*options.env, ("JUPYTER_TOKEN", token)]
    shell = ["/bin/sh", "-c"] if submit.is_local(options) else ["/bin/sh", "-lc"]
    words = [*shell, SERVE, NAME, *submit.words_of(options)]
    return submit.body_of(options, words) | {"interactive": True}


def how_to_open(job: Json, token: str) -> str:
    """The lines for this computer and for another one, once the job runs."""
    attempt = job["attempts"][-1]
    port = attempt["port"]
    if port is None:
        return "The job has no port of its own; the output of JupyterLab has the link."
    link = f"http://127.0.0.1:{port}/lab?token={token}"
    tunnel = f"ssh -N -L {port}:127.0.0.1:{port} {attempt['account']}@{attempt['host']}"
    return f"on this computer: {link}\nfrom another one: {tunnel}  # then open {link}"
