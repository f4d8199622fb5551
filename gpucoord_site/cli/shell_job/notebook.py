"""`gpucoord notebook`: JupyterLab of the user's environment as an interactive job. No Django."""

from __future__ import annotations

import secrets
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import connection, submit
from gpucoord_site.cli.environment import EnvironmentTooLarge
from gpucoord_site.cli.shell_job import command as shell_command

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client

OURS = 125
PROGRAM, NAME = "jupyter-lab", "notebook"
NO_TERMINAL = "gpucoord notebook needs a terminal."
NOT_INSTALLED = (
    "JupyterLab is in no folder of PATH. Activate its environment, or install it:"
    " python -m pip install jupyterlab"
)
# The token is in JUPYTER_TOKEN, where other accounts do not see it. The port is the job's own.
SERVE = (
    f"exec {PROGRAM} --no-browser --ip=127.0.0.1 --ServerApp.port_retries=0"
    ' ${GPUCOORD_PORT:+"--port=$GPUCOORD_PORT"} "$@"'
)
EPILOG = """\
It prints a line with the link, and the ssh command that makes it work on another computer. The
terminal shows the output of JupyterLab; Ctrl-C twice ends it. Enter and then ~. leaves it, and
`gpucoord shell --attach JOB` connects again; without a terminal the job ends after 5 minutes. It is
cancelled when its GPUs stay idle, after a warning in the terminal.
"""


def main(argv: Sequence[str]) -> int:
    """Returns the exit code of JupyterLab, or 125."""
    options = parser().parse_args(argv)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        connection.complain(NO_TERMINAL)
        return OURS
    if submit.is_local(options) and not options.host and not shutil.which(PROGRAM):
        connection.complain(NOT_INSTALLED)
        return OURS
    token = secrets.token_hex(24)
    try:
        body = body_of(options, token)
    except (EnvironmentTooLarge, submit.NotHere) as error:
        connection.complain(str(error))
        return OURS

    def work(client: Client) -> int:
        job_id = client.submit(body)
        connection.complain(f"job {job_id} submitted")
        return shell_command.attend(
            client,
            job_id,
            is_own=True,
            on_start=lambda job: connection.complain(how_to_open(job, token)),
        )

    return connection.run(options, work)


def body_of(options: Namespace, token: str) -> dict[str, Any]:
    options.detach, options.script = False, None
    options.name = options.name or NAME
    options.env = [*options.env, ("JUPYTER_TOKEN", token)]
    shell = ["/bin/sh", "-c"] if submit.is_local(options) else ["/bin/sh", "-lc"]
    words = [*shell, SERVE, NAME, *submit.words_of(options)]
    return submit.body_of(options, words) | {"interactive": True}


def how_to_open(job: dict[str, Any], token: str) -> str:
    """The lines for this computer and for another one, once the job runs."""
    attempt = job["attempts"][-1]
    port = attempt["port"]
    if port is None:
        return "The job has no port of its own; the output of JupyterLab has the link."
    link = f"http://127.0.0.1:{port}/lab?token={token}"
    tunnel = f"ssh -N -L {port}:127.0.0.1:{port} {attempt['account']}@{attempt['host']}"
    return f"on this computer: {link}\nfrom another one: {tunnel}  # then open {link}"


def parser() -> ArgumentParser:
    return submit.job_parser(
        "notebook",
        usage="gpucoord notebook [options] [-- JUPYTER ARGUMENT ...]",
        description="Run JupyterLab of this environment as a job.",
        epilog=EPILOG,
        leaves_out=("array", "array_limit", "script"),
    )


PARSERS = {"notebook": parser}
