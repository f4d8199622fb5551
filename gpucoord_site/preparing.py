"""What must hold before gpucoord starts; each failure is one sentence that says what to do."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.core.management import call_command
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.utils import timezone

from scheduler.runner import locks

# Any number that nobody else takes an advisory lock on: two hosts may start at once.
MIGRATION_LOCK = 7_480_911


class UnableToStart(Exception):
    """gpucoord can't start; the message is for people."""


def lock_data_folder(folder: Path) -> int:
    """Take DATA/run/up.lock for this process's life; returns its descriptor."""
    run = folder / "run"
    try:
        run.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(run / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise UnableToStart(
            f"The data folder {folder} can't be written ({error.strerror})."
            " Set GPUCOORD_DATA to a folder that this account may write to."
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.read(lock, 20).decode().strip() or "?"
        raise UnableToStart(
            f"gpucoord already runs on {folder} (process {pid})."
            " Stop it first, or set GPUCOORD_DATA to another folder."
        ) from None
    os.truncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def make_lock_folder(folder: Path) -> None:
    """Programs of all accounts lock files there; one that is there stays as it is."""
    try:
        if not folder.is_dir():
            folder.mkdir()
            # Whatever the umask is.
            folder.chmod(0o1777)
    except OSError as error:
        raise UnableToStart(
            f"The folder of lock files {folder} can't be made ({error.strerror})."
            f" Make it (mkdir -m 1777 {folder}), or set lock_folder to another."
        ) from None


def lock_folder_problem(folder: Path) -> str | None:
    """Why jobs could not lock their GPUs there. The GPUs can be watched all the same."""
    try:
        os.close(locks.open_file(folder / locks.HOST_FILE))
    except OSError as error:
        return f"{locks.problem(error)}. Until then no job on a GPU starts."
    if os.access(folder, os.W_OK):
        return None
    return f"{folder} is closed to this account: jobs start only where a GPU has its lock file."


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, held by the supervisor so that restarts of the web refuse nobody."""
    plain = host.strip("[]")
    try:
        family = socket.getaddrinfo(plain, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((plain, port), family=family, backlog=512)
    except socket.gaierror:
        raise UnableToStart(f'No address belongs to the host name "{host}".') from None
    except OSError as error:
        raise UnableToStart(_why_not_bound(error, host, port)) from None


def _why_not_bound(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is taken. Choose another with --port."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine. Choose another with --host."
    if error.errno == errno.EACCES:
        return f"This account may not listen on port {port}. Choose one above 1023 with --port."
    return f"Can't listen on {host} port {port}: {error.strerror}."


def check_nvml() -> None:
    """Refuse to go on where the NVIDIA driver can't be read. Only for a process that ends soon."""
    from monitor.probes.nvml import NvmlProbe

    probe = NvmlProbe()
    probe.open()
    sweep = probe.read(timezone.now(), ())
    if not sweep.gpus:
        reason = sweep.problem or "the NVIDIA driver lists no GPU."
        raise UnableToStart(f"GPUCOORD_REQUIRE_NVML is set: {reason} {sweep.remedy or ''}".strip())


def prepare_database() -> None:
    """Bring the tables up to this code; refuse a database that a newer gpucoord has changed."""
    try:
        with _alone():
            loader = MigrationLoader(connection)
            if newer := unknown_migrations(loader):
                raise UnableToStart(
                    f"The database is newer than this gpucoord (it has {', '.join(newer)})."
                    " Install the version that made it, or a later one."
                )
            if set(loader.disk_migrations) - set(loader.applied_migrations):
                call_command("migrate", verbosity=0, interactive=False)
    except DatabaseError as error:
        first = str(error).strip().splitlines()[0]
        raise UnableToStart(f"The database can't be used: {first}") from None


def unknown_migrations(loader: MigrationLoader) -> list[str]:
    """Migrations that the database has and this code does not know."""
    known = set(loader.disk_migrations)
    for migration in loader.disk_migrations.values():
        known |= {(app, name) for app, name in migration.replaces}
    applied = {key for key in loader.applied_migrations if key[0] in loader.migrated_apps}
    return sorted(f"{app}.{name}" for app, name in applied - known)


@contextmanager
def _alone() -> Iterator[None]:
    if connection.vendor != "postgresql":
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [MIGRATION_LOCK])
        try:
            yield
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [MIGRATION_LOCK])
