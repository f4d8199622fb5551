"""`gpucoord setup`: install the service on this server, or take it back. For root."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucoord_site.cli import instances, local_login
from gpucoord_site.cli.parsing import Parser
from scheduler.facts.language_models import OWNER

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
            _carry_out(removing(system, program), dry_run=options.dry_run)
            print(f"The data in {system.data} and the settings {system.settings} are kept.")
            return 0
        admin = administrator(dict(os.environ))
        _carry_out(installing(system, program, admin, options.name), dry_run=options.dry_run)
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
        folder = UNIT.parent
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


# The steps of `gpucoord setup`: what each one changes, whether it is done, and how it is done.

UNIT = Path(__file__).resolve().parents[1] / "deploy" / "gpucoord.service"
# The program in the shipped unit.
SHIPPED_PROGRAM = "/opt/gpucoord/bin/gpucoord"
COMMAND_S = 120.0


class SetupFailed(Exception):
    """A step is not possible; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Step:
    """`text`: what it changes, as an order. It is left out if it `is_done`."""

    text: str
    is_done: Callable[[], bool]
    apply: Callable[[], None]


@dataclass(frozen=True, slots=True)
class System:
    """The machine: its files below `root`, and its commands. Tests have a folder and a recorder."""

    root: Path = Path("/")
    run: Callable[[Sequence[str]], None] = field(default=lambda argv: _run(argv))

    @property
    def unit(self) -> Path:
        return self.root / "etc/systemd/system/gpucoord.service"

    @property
    def settings(self) -> Path:
        return self.root / "etc/gpucoord.toml"

    @property
    def link(self) -> Path:
        return self.root / "usr/local/bin/gpucoord"

    @property
    def data(self) -> Path:
        return self.root / "var/lib/gpucoord"

    @property
    def has_systemd(self) -> bool:
        return (self.root / "run/systemd/system").is_dir()


def installing(system: System, program: Path, admin: str | None, name: str | None) -> list[Step]:
    """admin: the OS account of the first administrator; name: of the server behind a proxy."""
    unit = unit_text(program)
    steps = [
        Step(
            f"create the data folder {system.data}",
            system.data.is_dir,
            lambda: system.data.mkdir(mode=0o700, parents=True),
        ),
        Step(
            f"create the account {OWNER}, which runs the servers of language models",
            _has_account,
            lambda: system.run(
                ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", OWNER]
            ),
        ),
        Step(
            f"link {system.link} to {program}",
            lambda: _leads_to(system.link, program),
            lambda: _link(system.link, program),
        ),
        Step(
            f"write the settings {system.settings}",
            system.settings.exists,
            lambda: _write(system.settings, settings_text(system, admin, name)),
        ),
        Step(
            f"write the systemd unit {system.unit}",
            lambda: system.unit.is_file() and system.unit.read_text() == unit,
            lambda: _write(system.unit, unit),
        ),
    ]
    if system.has_systemd:
        steps.append(Step("start the service now and at each boot", lambda: False, _start(system)))
    return steps


def removing(system: System, program: Path) -> list[Step]:
    """The data folder, the settings and the account stay."""
    steps = [
        Step(
            f"remove the systemd unit {system.unit}",
            lambda: not system.unit.exists(),
            system.unit.unlink,
        ),
        Step(
            f"remove the link {system.link}",
            lambda: not _leads_to(system.link, program),
            system.link.unlink,
        ),
    ]
    if not (system.has_systemd and system.unit.exists()):
        return steps
    stop = Step(
        "stop the service; running jobs continue",
        lambda: False,
        lambda: system.run(["systemctl", "disable", "--now", "gpucoord"]),
    )
    reload = Step("tell systemd", lambda: False, lambda: system.run(["systemctl", "daemon-reload"]))
    return [stop, *steps, reload]


def unit_text(program: Path) -> str:
    """The shipped unit with the path of this program."""
    return UNIT.read_text().replace(f"ExecStart={SHIPPED_PROGRAM} ", f"ExecStart={program} ")


def settings_text(system: System, admin: str | None, name: str | None) -> str:
    return "\n".join(_settings(system, admin, name)) + "\n"


def _settings(system: System, admin: str | None, name: str | None) -> Iterator[str]:
    yield "# Written by `gpucoord setup`, which never changes it again."
    # An existing database has its administrator.
    if admin is not None and not (system.data / "gpucoord.sqlite3").exists():
        yield "# The first administrator logs in by the OS account with this name."
        yield f'admin_user = "{admin}"'
        yield "local_superusers = true"
    if name is not None:
        yield "# A proxy with HTTPS passes this name on; see gpucoord_site/deploy/Caddyfile."
        yield f'allowed_hosts = ["{name}"]'
        yield "https = true"
        yield "port = 8000"


def administrator(environ: dict[str, str]) -> str | None:
    """The OS account that ran sudo; None: root logged in itself."""
    name = environ.get("SUDO_USER", "")
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):
        return None
    return None if entry.pw_uid == 0 else entry.pw_name


def _start(system: System) -> Callable[[], None]:
    def start() -> None:
        system.run(["systemctl", "daemon-reload"])
        system.run(["systemctl", "enable", "gpucoord"])
        system.run(["systemctl", "restart", "gpucoord"])

    return start


def _has_account() -> bool:
    try:
        pwd.getpwnam(OWNER)
    except KeyError:
        return False
    return True


def _leads_to(link: Path, program: Path) -> bool:
    return link.is_symlink() and link.readlink() == program


def _link(link: Path, program: Path) -> None:
    if link.exists() and not link.is_symlink():
        raise SetupFailed(f"{link} is a file of another installation. Remove it first.")
    link.parent.mkdir(parents=True, exist_ok=True)
    draft = link.with_name(f".{link.name}.{os.getpid()}")
    draft.symlink_to(program)
    draft.replace(link)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o644)
    draft.replace(path)


def _run(argv: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            list(argv), capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupFailed(f"{' '.join(argv)} failed: {error}") from None
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
        raise SetupFailed(f"{' '.join(argv)} failed: {reason[0]}")
