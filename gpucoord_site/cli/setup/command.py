"""`gpucoord setup`: install the service on this server, or take it back. For root."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpucoord_site.cli import instances, local_login
from gpucoord_site.cli.parsing import Parser
from gpucoord_site.cli.setup import steps as setup_steps
from gpucoord_site.cli.setup.steps import SetupFailed, Step, System

START_S = 60.0
PAUSE_S = 0.5
HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})+")
NEXT = """\
Next:
  1. gpucoord user add NAME                adds a user of this server
  2. gpucoord quota set NAME --share 30    limits a user
  3. gpucoord submit {job:<20}   runs a first job
`gpucoord help installation` explains the settings."""


def main(argv: Sequence[str], system: System | None = None) -> int:
    """Returns 0; 1 if `gpucoord check` finds a fault; 2 if a step is not possible."""
    options = parser().parse_args(argv)
    # The client alone has no such module, and stops here.
    from gpucoord_site.cli.check import command as check

    system = system or System()
    if os.geteuid() != 0 and not options.dry_run:
        sys.stderr.write("gpucoord: setup needs root; `gpucoord setup --dry-run` does not.\n")
        return 2
    program = _program()
    try:
        if options.remove:
            _carry_out(setup_steps.removing(system, program), dry_run=options.dry_run)
            print(f"The data in {system.data} and the settings {system.settings} are kept.")
            return 0
        admin = setup_steps.administrator(dict(os.environ))
        _carry_out(
            setup_steps.installing(system, program, admin, options.name), dry_run=options.dry_run
        )
    except (SetupFailed, OSError) as error:
        sys.stderr.write(f"gpucoord: {error}\n")
        return 2
    return 0 if options.dry_run else _finish(system, options.name, check.main)


def _carry_out(steps: Sequence[Step], *, dry_run: bool) -> None:
    """Raises SetupFailed. What is done already is left alone."""
    for step in steps:
        if step.is_done():
            print(f"  done before: {step.text}")
        elif dry_run:
            print(f"  would {step.text}")
        else:
            step.apply()
            print(f"  done: {step.text}")


def _finish(system: System, name: str | None, check: Callable[[Sequence[str]], int]) -> int:
    """Check, and say where the service is."""
    address = _address() if system.has_systemd else None
    code = check([])
    if not system.has_systemd:
        print("systemd does not run here. Start the service yourself: gpucoord up")
    elif address is None:
        print("The service does not answer yet. See: journalctl -u gpucoord")
        return 1
    else:
        print(f"gpucoord runs at {address}.")
        _show_link(address)
    if name is not None:
        folder = setup_steps.UNIT.parent
        print(f"A proxy must serve https://{name}. Examples: {folder}/Caddyfile and nginx.conf")
    job = "-- nvidia-smi" if shutil.which("nvidia-smi") else "--gpus 0 -- hostname"
    print(NEXT.format(job=job))
    return code


def _address() -> str | None:
    """Of the service that was just started; None: it does not answer in time."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if address := next(instances.of_data_folder(), None):
            return address
        time.sleep(PAUSE_S)
    return None


def _show_link(address: str) -> None:
    try:
        answer: dict[str, Any] | None = local_login.ask(address, "link")
    except local_login.LoginRefused as error:
        print(f"No login link: {error}")
        return
    if answer is not None:
        link = (answer["public_url"] or answer["url"]) + answer["path"]
        print(f"Open this link within {answer['seconds']} seconds to log in as {answer['user']}:")
        print(f"  {link}")
        print("`gpucoord login` prints a new one.")


def _program() -> Path:
    """The command of this environment."""
    installed = Path(sys.prefix) / "bin" / "gpucoord"
    return installed if installed.exists() else Path(sys.argv[0]).absolute()


def _host_name(text: str) -> str:
    if not HOST_NAME.fullmatch(text):
        raise ArgumentTypeError(f"{text!r} is not the name of a server, such as gpus.example.org")
    return text


def parser() -> ArgumentParser:
    made = Parser(
        prog="gpucoord setup",
        description="Install the service on this server: data folder, account, command, settings"
        " and systemd unit. Steps that are done already are left alone.",
    )
    add = made.add_argument
    add("--dry-run", action="store_true", help="show each step and change nothing")
    add("--remove", action="store_true", help="remove service and command; the data is kept")
    add("--name", type=_host_name, help="the server's name, if a proxy with HTTPS serves it")
    return made


PARSERS = {"setup": parser}
