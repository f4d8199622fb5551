"""Commands on the server itself: `login`, `setup`, `backup`, `restore` and `move-database`."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gpucoord_site.cli import connection, local_login
from gpucoord_site.cli.commands import (
    REFUSED,
    USAGE_ERROR,
    arg,
    command,
    complain,
    show,
)

if TYPE_CHECKING:
    from gpucoord_site.config.settings import Config

Json = dict[str, Any]

# `gpucoord login`: a link that logs a browser in once.

NO_SERVICE = (
    "No gpucoord service on this machine logs you in at {url}. Run `gpucoord login` on the server,"
    " or log in with a password in the browser."
)
TAKES_NONE = "gpucoord login uses your OS account on the server; it takes no token."


@command(
    "login",
    "Print a link that logs your browser in as you, once. Run it on the server.",
    *connection.SERVER,
)
def login(options: Namespace) -> int:
    """Returns 0, or 125 when there is no link."""
    if options.token:
        return complain(TAKES_NONE)
    address = connection.url(options)
    try:
        answer = local_login.ask(address, "link")
    except local_login.LoginRefused as error:
        return complain(str(error))
    if answer is None:
        return complain(NO_SERVICE.format(url=address))
    shown = {"user": answer["user"], "url": _link_of(answer), "seconds": answer["seconds"]}
    return show(options, shown, _login_lines(answer))


def _link_of(answer: Json) -> str:
    return f"{answer['public_url'] or answer['url']}{answer['path']}"


def _login_lines(answer: Json) -> Iterator[str]:
    yield f"Open this link within {answer['seconds']} seconds. It logs you in as {answer['user']},"
    yield "and it works once:"
    yield f"  {_link_of(answer)}"
    if not answer["public_url"]:
        port, host = urlsplit(answer["url"]).port, os.uname().nodename
        here = urlsplit(answer["url"]).netloc
        yield f"From another computer, first run there: ssh -L {port}:{here} {host}"


# `gpucoord backup`, `restore` and `move-database`; gpucoord_site/backup/ does the work.


@command(
    "backup",
    "Write the database, the secret key and the settings file into one file (mode 0600). gpucoord"
    " may run meanwhile. Files of jobs are not included.",
    arg("file FILE", "such as gpucoord.tar.gz", type=Path),
    arg("--replace", "replace FILE if it exists"),
)
def backup(options: Namespace) -> int:
    from gpucoord_site.backup import command as backups

    return _saving(lambda config: backups.backup(config, options.file, replace=options.replace))


@command(
    "restore",
    "Put a backup into the data folder and the database. Stop gpucoord first, on every host that"
    " uses the database.",
    arg("file FILE", "a file of gpucoord backup", type=Path),
    arg("--replace", "replace existing data; replaced files are kept in DATA/replaced-TIME"),
)
def restore(options: Namespace) -> int:
    from gpucoord_site.backup import command as backups

    return _saving(lambda config: backups.restore(config, options.file, replace=options.replace))


@command(
    "move-database",
    "Copy all rows from the database of the settings to another kind of database: from SQLite to"
    " PostgreSQL, or back. Stop gpucoord first. The source is not changed.",
    arg(
        "target TARGET",
        "empty database postgresql://USER:PASSWORD@HOST:5432/NAME, `sqlite` for the data"
        " folder, or - to read the address from the standard input",
    ),
)
def move_database(options: Namespace) -> int:
    target = sys.stdin.readline().strip() if options.target == "-" else options.target
    from gpucoord_site.backup import command as backups

    return _saving(lambda config: backups.move(config, target))


def _saving(action: Callable[[Config], str]) -> int:
    """Print what was done, or the reason why not (exit code 1)."""
    from gpucoord_site.backup.archive import BackupError
    from gpucoord_site.config.settings import load_config
    from gpucoord_site.service.startup_checks import UnableToStart

    config = load_config()
    try:
        text = action(config)
    except (BackupError, UnableToStart) as error:
        return complain(str(error), REFUSED)
    sys.stdout.write(f"{text}\n")
    return 0


# `gpucoord setup`: install the service on this server, or take it back. For root.

START_S = 60.0
PAUSE_S = 0.5
HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})+")
NEXT = """\
Next:
  1. gpucoord user add NAME                adds a user of this server
  2. gpucoord quota set NAME --share 30    limits a user
  3. gpucoord submit {job:<20}   runs a first job
`gpucoord help installation` explains the settings."""


def _host_name(text: str) -> str:
    if not HOST_NAME.fullmatch(text):
        raise ArgumentTypeError(f"{text!r} is not the name of a server, such as gpus.example.org")
    return text


@command(
    "setup",
    "Install the service on this server: data folder, account, command, settings and systemd unit."
    " Steps that are done already are left alone.",
    arg("--dry-run", "show each step and change nothing"),
    arg("--remove", "remove service and command; the data is kept"),
    arg("--name", "the server's name, if a proxy with HTTPS serves it", type=_host_name),
)
def setup(options: Namespace, system: System | None = None) -> int:
    """Returns 0; 1 if `gpucoord check` finds a fault; 2 if a step is not possible."""
    # The client alone has no such module, and stops here.
    from gpucoord_site.cli.check import check

    if os.geteuid() != 0 and not options.dry_run:
        text = "setup needs root; `gpucoord setup --dry-run` does not."
        return complain(text, USAGE_ERROR)
    system, program = system or System(), _program()
    try:
        if options.remove:
            _carry_out(removing(system, program), dry_run=options.dry_run)
            print(f"The data in {system.data} and the settings {system.settings} are kept.")
            return 0
        admin = administrator(dict(os.environ))
        _carry_out(installing(system, program, admin, options.name), dry_run=options.dry_run)
    except (SetupFailed, OSError) as error:
        return complain(str(error), USAGE_ERROR)
    return 0 if options.dry_run else _finish(system, options.name, check)


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
        if address := next(local_login.of_data_folder(), None):
            return address
        time.sleep(PAUSE_S)
    return None


def _show_link(address: str) -> None:
    try:
        answer = local_login.ask(address, "link")
    except local_login.LoginRefused as error:
        print(f"No login link: {error}")
        return
    if answer is not None:
        print(f"Open this link within {answer['seconds']} seconds to log in as {answer['user']}:")
        print(f"  {_link_of(answer)}")
        print("`gpucoord login` prints a new one.")


def _program() -> Path:
    """The command of this environment."""
    installed = Path(sys.prefix) / "bin" / "gpucoord"
    return installed if installed.exists() else Path(sys.argv[0]).absolute()


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


class System:
    """The machine: its files below `root`, and its commands. Tests have a folder and a recorder."""

    def __init__(
        self, root: Path = Path("/"), run: Callable[[Sequence[str]], None] | None = None
    ) -> None:
        self.root, self.run = root, run or _run
        self.unit = root / "etc/systemd/system/gpucoord.service"
        self.settings = root / "etc/gpucoord.toml"
        self.link = root / "usr/local/bin/gpucoord"
        self.data = root / "var/lib/gpucoord"

    @property
    def has_systemd(self) -> bool:
        return (self.root / "run/systemd/system").is_dir()


def installing(system: System, program: Path, admin: str | None, name: str | None) -> list[Step]:
    """admin: the OS account of the first administrator; name: of the server behind a proxy."""
    from scheduler.facts.language_models import OWNER

    unit = unit_text(program)
    steps = [
        Step(
            f"create the data folder {system.data}",
            system.data.is_dir,
            lambda: system.data.mkdir(mode=0o700, parents=True),
        ),
        Step(
            f"create the account {OWNER}, which runs the servers of language models",
            lambda: _has_account(OWNER),
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


def _has_account(name: str) -> bool:
    try:
        pwd.getpwnam(name)
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
