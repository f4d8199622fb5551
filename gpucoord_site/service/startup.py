"""`gpucoord up`, step by step: check, prepare the database, name the address, supervise.

Ends processes that a killed supervisor left behind, and creates the first administrator. Jobs have
sessions of their own and are not affected.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models import Max, Q
from django.utils import timezone
from django.utils.crypto import salted_hmac

from gpucoord_site import __version__
from gpucoord_site.cli.check_machine import problems as disk_problems
from gpucoord_site.config.settings import Config, ConfigError, load_config
from gpucoord_site.config.values import is_loopback, origin, own_names
from gpucoord_site.service import children, slices
from gpucoord_site.service.children import kill_session
from gpucoord_site.service.listeners import LoginListener, remove_stale_sockets
from gpucoord_site.service.logs import LogStream
from gpucoord_site.service.startup_checks import (
    PortTaken,
    UnableToStart,
    bind,
    bind_free,
    check_nvml,
    lock_data_folder,
    lock_folder_problem,
    make_lock_folder,
    prepare_database,
)
from gpucoord_site.service.supervisor import Supervisor
from monitor.facts.accounts import LocalAccounts
from monitor.facts.readings import JoiningHost
from monitor.gpus.policy import hosts as host_policy
from monitor.gpus.rows import hosts as host_rows
from monitor.journal.rows import audit, events
from monitor.owners import rows as os_accounts
from monitor.runtime.probes import service_state
from monitor.runtime.probes.process_identity import boot_id, start_ticks
from monitor.runtime.probes.service_state import ChildState, ServiceState
from monitor.thresholds import rows as thresholds
from scheduler.disk.policy import DiskPolicy
from scheduler.facts.jobs import JobState
from scheduler.jobs.rows import changes
from scheduler.models import Job
from scheduler.runner.files import JOBS, attempt_folder
from scheduler.submission.intake import steps

PATIENCE_S = 3.0
LARGEST_GAP, MOST_FILLED = 4072, 8 * 1024**2


def end_leftovers(folder: Path) -> int:
    """Kill the sessions that the last supervisor recorded, if they are certainly its own."""
    last = service_state.read(folder)
    if last is None or last.boot_id != boot_id():
        return 0
    sessions = [c.pid for c in last.children if c.pid is not None and _is_ours(c, last)]
    for leader in sessions:
        kill_session(leader)
    _wait_until_gone(sessions)
    return len(sessions)


def _is_ours(child: ChildState, last: ServiceState) -> bool:
    """Whether the session holds processes that are all copies of that supervisor.

    A session id is not reused while a member lives. Another start time of the leader, or another
    command line, shows that the id was reused.
    """
    leader = child.pid or 0
    pids = list(children.session_members(leader))
    if start_ticks(leader) not in (None, child.start_ticks):
        return False
    return bool(pids) and all(children.command_line(pid) == last.command for pid in pids)


def _wait_until_gone(sessions: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while any(any(children.session_members(s)) for s in sessions) and time.monotonic() < deadline:
        time.sleep(0.05)


def make_first_admin(config: Config) -> str | None:
    """Create the administrator if there is none; returns the generated password, if any.

    An ordinary account with that name is not changed.
    """
    existing = Q(is_superuser=True) | Q(username=config.admin_user)
    if User.objects.filter(existing).exists():
        return None
    if config.admin_password:
        _check(config.admin_password)
    made_up = None if config.admin_password else secrets.token_urlsafe(12)
    User.objects.create_superuser(config.admin_user, password=config.admin_password or made_up)
    return made_up


def _check(password: str) -> None:
    try:
        validate_password(password)
    except ValidationError as error:
        reasons = " ".join(error.messages)
        raise ConfigError(f"GPUCOORD_ADMIN_PASSWORD can't be used. {reasons}") from None


def start(*, serves_web: bool = True, **options: Any) -> int:
    """Run gpucoord until a signal; returns the exit code. Options that are None are ignored."""
    try:
        config = _configure(options)
        lock = lock_data_folder(config.data)
        make_lock_folder(config.locks)
        end_leftovers(config.data / "run")
        # Other hosts read the logs of a host without pages there.
        serves_logs = not serves_web and bool(reachable_address(config, config.port))
        config, listening = _listen(config, options, is_needed=serves_web or serves_logs)
        number = listening.getsockname()[1]
        port, log_port = number if serves_web else None, number if serves_logs else None
        in_a_child(lambda: _prepare(config, port, log_port), meanwhile=_load)
    except (ConfigError, UnableToStart) as error:
        sys.stderr.write(f"gpucoord: {error}\n")
        return 2
    if problem := lock_folder_problem(config.locks):
        sys.stderr.write(f"gpucoord: {problem}\n")
    _warn_about_accounts(config)
    address = _address(config.host, listening.getsockname()[1])
    logins = _login_listener(config, listening.getsockname()[1]) if serves_web else None
    supervisor = Supervisor(
        listening, address, lock, logins, serves_web=serves_web, serves_logs=serves_logs
    )
    supervisor.start()
    # From here on, no write waits for a reader of the output.
    sys.stdout, sys.stderr = LogStream(1), LogStream(2)
    place = f"is at {address}" if serves_web else f"runs the host {config.node} without pages"
    _say(f"gpucoord {__version__} {place} (Ctrl-C stops it)")
    return supervisor.run()


def _configure(options: dict[str, Any]) -> Config:
    """The settings with the command line's options; what is forked later sees them too."""
    config = load_config(**{key: value for key, value in options.items() if value is not None})
    settings.CONFIG = config
    settings.ALLOWED_HOSTS = [*config.allowed_hosts, *own_names(config.host)]
    return config


def _listen(
    config: Config, options: dict[str, Any], *, is_needed: bool
) -> tuple[Config, socket.socket]:
    """Listen on the port of the settings; if none is set and the default is taken, on a free one.

    Returns the settings with the port in use. Raises UnableToStart.
    """
    if not is_needed:
        return config, bind(config.host, 0)
    try:
        return config, bind(config.host, config.port)
    except UnableToStart as error:
        is_chosen = options.get("port") is not None or origin("port", os.environ)
        if is_chosen or not isinstance(error, PortTaken):
            raise
    listening = bind_free(config.host, config.port + 1)
    number = listening.getsockname()[1]
    _say(f"Port {config.port} is taken, so gpucoord uses port {number}. --port sets another one.")
    return _configure(options | {"port": number}), listening


def _prepare(config: Config, port: int | None, log_port: int | None) -> None:
    """port: of the pages; log_port: of the logs alone; None: this host serves none."""
    if port is None and config.database_url is None:
        raise UnableToStart("gpucoord node needs the PostgreSQL database of DATABASE_URL.")
    if config.needs_nvml:
        check_nvml(is_set=bool(config.require_nvml))
    prepare_database()
    join(config, port, log_port)
    os_accounts.adopt_earlier_users(timezone.now())
    _hold_unrecorded(config)
    _skip_used_numbers(config)
    disks = disk_problems(config, thresholds.current(DiskPolicy))
    for problem in (*disks, *thresholds.retired_values()):
        sys.stderr.write(f"gpucoord: warning: {problem}\n")
    if password := make_first_admin(config):
        _say(f"Log in as {config.admin_user} with the password {password} (shown only now).")


def _hold_unrecorded(config: Config) -> None:
    """Hold waiting jobs that have run without a row of it: since a backup that was restored.

    An attempt has its row before its folder.
    """
    waiting = Job.objects.filter(state=JobState.QUEUED.value, held="")
    numbers = waiting.annotate(last=Max("attempts__number")).values_list("pk", "last")
    ran = [pk for pk, last in numbers if attempt_folder(config.data, pk, (last or 0) + 1).exists()]
    if ran:
        why = "it has run since the backup that was restored"
        changes.hold(Job.objects.filter(pk__in=ran), audit.GPUCOORD, timezone.now(), why)


def _skip_used_numbers(config: Config) -> None:
    """Give new jobs numbers above those of all folders, which a restored database may not know."""
    names = (path.name for path in (config.data / JOBS).glob("[0-9]*"))
    highest = max((int(name) for name in names if name.isdecimal() and len(name) < 16), default=0)
    table = Job._meta.db_table
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            known = Job.objects.aggregate(last=Max("pk"))["last"] or 0
            cursor.execute("SELECT seq FROM sqlite_sequence WHERE name = %s", [table])
            last = max([known, *(seq for (seq,) in cursor.fetchall())])
            if last < highest:
                cursor.execute("DELETE FROM sqlite_sequence WHERE name = %s", [table])
                cursor.execute("INSERT INTO sqlite_sequence VALUES (%s, %s)", [table, highest])
        else:
            cursor.execute(
                "SELECT setval(pg_get_serial_sequence(%s, 'id'),"
                " greatest(%s, nextval(pg_get_serial_sequence(%s, 'id'))))",
                [table, highest, table],
            )


def _load() -> None:
    """Import what the children need before they are forked: they share it and start faster."""
    slices.preload()
    # A failing import is reported by the web process.
    with suppress(Exception):
        import_module(settings.ROOT_URLCONF)
    fill_gaps()


def fill_gaps() -> None:
    """Fill the gaps that the imports have left between blocks of memory, for good.

    Each child would put its own small blocks into them, all over the heap, and so copy pages that
    it shares with the others: 10 to 30 MB of all processes together.
    """
    malloc = ctypes.CDLL(None).malloc
    malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    filled = 0
    # The sizes of glibc's blocks, each with a head of 8 bytes.
    for size in range(LARGEST_GAP, 8, -16):
        last = block = 0
        # Two blocks in a row come from the end of the heap: no gap of this size is left.
        while filled < MOST_FILLED and (block - last != size + 8 or not last):
            last, block = block, malloc(size) or 0
            filled += size


def in_a_child(action: Callable[[], None], meanwhile: Callable[[], None] = lambda: None) -> None:
    """Run a function that needs much memory or the GPU driver in a child process."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            action()
        except (ConfigError, UnableToStart) as error:
            os.write(writer, str(error).encode())
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode()[:4000])
        finally:
            os._exit(0)
    os.close(writer)
    meanwhile()
    with os.fdopen(reader) as pipe:
        problem = pipe.read()
    _, status = os.waitpid(pid, 0)
    if problem or status:
        raise UnableToStart(problem or "The preparation of the database ended unexpectedly.")


def _login_listener(config: Config, port: int) -> LoginListener | None:
    """None where logins by OS account are switched off."""
    remove_stale_sockets()
    if config.local_rule.accounts is LocalAccounts.NONE:
        return None
    logins = LoginListener(port, local_address(config.host, port))
    logins.look()
    if logins.problem:
        sys.stderr.write(f"gpucoord: warning: {logins.problem}\n")
    return logins


def _warn_about_accounts(config: Config) -> None:
    """Warn at the start that jobs are not separated, except on a simulated server."""
    rule = steps.current_account_rule()
    if not rule.is_safe and config.probe != "simulated":
        sys.stderr.write(f"gpucoord: warning: {rule.text}. To change this: {rule.todo}.\n")


def _address(host: str, port: int) -> str:
    """The URL for a browser: with this machine's name if gpucoord listens on all addresses."""
    plain = host.strip("[]")
    if plain in {"0.0.0.0", "::"}:  # noqa: S104 - compared with, not bound
        plain = os.uname().nodename
    return f"http://{f'[{plain}]' if ':' in plain else plain}:{port}/"


def local_address(host: str, port: int) -> str:
    """The address of the REST API for clients on this machine, which no other account can take."""
    plain = {"0.0.0.0": "127.0.0.1", "::": "::1", "localhost": "127.0.0.1"}.get(  # noqa: S104
        host.strip("[]"), host.strip("[]")
    )
    return f"http://{f'[{plain}]' if ':' in plain else plain}:{port}"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# A host registers when its service starts, or is refused with a sentence.


FILE = "host_id"


def join(config: Config, port: int | None, log_port: int | None = None) -> None:
    """Store what this host is. Raises UnableToStart if it may not start.

    port: of its pages; None: it serves none. log_port: where it serves its logs without pages.
    """
    now = timezone.now()
    new = JoiningHost(
        name=config.node,
        instance=instance(config.data),
        key_mark=key_mark(),
        boot_id=boot_id(),
        version=__version__,
        address=_address_for_others(config, port),
        profile=config.profile,
        log_address=_address_for_others(config, log_port if port is None else port),
    )
    token = config.join_token or ""
    with transaction.atomic():
        has_token = bool(token) and host_rows.is_valid_token(token, now)
        hosts = host_rows.all_hosts()
        problem = host_policy.join_problem(
            new, hosts, now, has_token=has_token, shared=connection.vendor == "postgresql"
        )
        if problem:
            spent = " GPUCOORD_JOIN_TOKEN is unknown, used or expired." if token else ""
            raise UnableToStart(f"{problem}{spent if not has_token else ''}")
        instances = {host.name: host.instance for host in hosts}
        is_new = instances.get(new.name) != new.instance
        if has_token and is_new and not host_rows.use_token(token):
            raise UnableToStart("GPUCOORD_JOIN_TOKEN has just been used by another host.")
        if host_rows.register(new, now):
            text = f"The host {new.name} has joined with gpucoord {new.version}."
            events.add("HOST_JOINED", text, now=now, host=new.name)


def _address_for_others(config: Config, port: int | None) -> str:
    return "" if port is None else reachable_address(config, port)


def key_mark() -> str:
    """A digest of the secret key, which says nothing about the key."""
    return salted_hmac("gpucoord.hosts", "key mark", algorithm="sha256").hexdigest()


def instance(data: Path) -> str:
    """The identity of this data folder, made at the first start."""
    path = data / FILE
    if not path.exists():
        draft = data / f".{FILE}.{os.getpid()}"
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_hex(16))
        with suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    return path.read_text().strip()


def reachable_address(config: Config, port: int) -> str:
    """The address of this host's pages for users and other hosts; "" = only this host has one."""
    if config.public_url:
        return config.public_url
    plain = config.host.strip("[]")
    if is_loopback(plain):
        return ""
    # Compared with, not bound.
    if plain in {"0.0.0.0", "::"}:  # noqa: S104
        plain = config.node
    return f"http://{f'[{plain}]' if ':' in plain else plain}:{port}"
