"""Checks before gpucoord starts; each failure is one sentence with a remedy."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from django.core.management import call_command
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone
from msgspec import Struct

from scheduler.runner.confine import locks

# Key of the advisory lock for hosts that start at the same time. Any unique number.
MIGRATION_LOCK = 7_480_911
# Of ports, from the default one on.
MOST_TRIES = 50
TOO_OLD = (
    "The database is too old for this gpucoord. Upgrade it first with the version that comes after"
    " the one that made it, or start with an empty data folder."
)


class UnableToStart(Exception):
    """gpucoord can't start; the message is for people."""


class PortTaken(UnableToStart):
    """Another process listens on the port."""


def lock_data_folder(folder: Path) -> int:
    """Lock DATA/run/up.lock for the life of this process; returns the descriptor."""
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
    """Create the folder of lock files for programs of all accounts; keep an existing one."""
    try:
        if not folder.is_dir():
            folder.mkdir()
            # The umask must not matter.
            folder.chmod(0o1777)
    except OSError as error:
        raise UnableToStart(
            f"The folder of lock files {folder} can't be made ({error.strerror})."
            f" Make it (mkdir -m 1777 {folder}), or set lock_folder to another."
        ) from None


def lock_folder_problem(folder: Path) -> str | None:
    """Why jobs cannot lock their GPUs there. Monitoring works without it."""
    try:
        os.close(locks.open_file(folder / locks.HOST_FILE))
    except OSError as error:
        return f"{locks.describe_error(error)}. Until then no job on a GPU starts."
    if os.access(folder, os.W_OK):
        return None
    return f"{folder} is closed to this account: jobs start only where a GPU has its lock file."


def bind(host: str, port: int, option: str = "--port") -> socket.socket:
    """A listening socket; the supervisor holds it so that connections wait while web restarts.

    option: how to choose another port. Raises UnableToStart.
    """
    plain = host.strip("[]")
    try:
        family = socket.getaddrinfo(plain, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((plain, port), family=family, backlog=512)
    except socket.gaierror:
        raise UnableToStart(f'No address belongs to the host name "{host}".') from None
    except OSError as error:
        kind = PortTaken if error.errno == errno.EADDRINUSE else UnableToStart
        raise kind(_why_not_bound(error, host, port, option)) from None


def bind_free(host: str, first: int) -> socket.socket:
    """A listening socket on the first free port from `first` on whose next port is free too.

    The endpoint of models takes the next one. Raises UnableToStart.
    """
    for port in range(first, first + MOST_TRIES):
        with suppress(UnableToStart):
            listening = bind(host, port)
            try:
                bind(host, port + 1).close()
            except UnableToStart:
                listening.close()
                continue
            return listening
    raise UnableToStart(
        f"The ports {first} to {first + MOST_TRIES} on {host} are taken. Choose one with --port."
    )


def _why_not_bound(error: OSError, host: str, port: int, option: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is taken. Choose another with {option}."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine. Choose another with --host."
    if error.errno == errno.EACCES:
        text = f"This account may not listen on port {port}. Choose one above 1023"
        return f"{text} with {option}."
    return f"Can't listen on {host} port {port}: {error.strerror}."


def check_nvml(*, is_set: bool) -> None:
    """Refuse to go on where the NVIDIA driver can't be read. Only for a process that ends soon.

    is_set: the setting asks for it; else the profile does.
    """
    from monitor.gpus.sampling.probes.nvml import detect

    sweep, _ = detect(timezone.now())
    if not sweep.gpus:
        reason = sweep.problem or "the NVIDIA driver lists no GPU."
        why = (
            "GPUCOORD_REQUIRE_NVML is set"
            if is_set
            else "profile = desktop needs the NVIDIA driver (or set require_nvml = false)"
        )
        raise UnableToStart(f"{why}: {reason} {sweep.remedy or ''}".strip())


def prepare_database() -> None:
    """Migrate the tables; refuse a database that is too old or too new for this code."""
    try:
        with _alone():
            if is_too_old():
                raise UnableToStart(TOO_OLD)
            loader = MigrationLoader(connection)
            if newer := unknown_migrations(loader):
                raise UnableToStart(
                    f"The database is newer than this gpucoord (it has {', '.join(newer)})."
                    " Install the version that made it, or a later one."
                )
            is_behind = set(loader.disk_migrations) - set(loader.applied_migrations)
            if is_behind:
                call_command("migrate", verbosity=0, interactive=False)
    except DatabaseError as error:
        first = str(error).strip().splitlines()[0]
        raise UnableToStart(f"The database can't be used: {first}") from None


def is_too_old() -> bool:
    """Whether the database has only a part of the migrations that a later one replaces."""
    loader = MigrationLoader(connection, load=False)
    loader.load_disk()
    applied = MigrationRecorder(connection).applied_migrations()
    shares = (
        [key in applied for key in migration.replaces]
        for migration in loader.disk_migrations.values()
    )
    return any(any(has) and not all(has) for has in shares)


def unknown_migrations(loader: MigrationLoader) -> list[str]:
    """Migrations of the database that this code does not have."""
    on_disk = set(loader.disk_migrations)
    for migration in loader.disk_migrations.values():
        on_disk |= set(migration.replaces)
    applied = {key for key in loader.applied_migrations if key[0] in loader.migrated_apps}
    return sorted(f"{app}.{name}" for app, name in applied - on_disk)


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


# The file system of a path. SQLite's write-ahead log needs a local one.


# Shared by several machines, or with unreliable locks and shared memory maps.
NETWORK = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "gpfs",
        "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2", "smb2", "smb3", "smbfs",
    }
)  # fmt: skip
NETWORK_FUSE = frozenset(
    {"ceph", "davfs2", "glusterfs", "juicefs", "rclone", "s3fs", "seaweedfs", "sshfs"}
)


class Mount(Struct, frozen=True):
    point: Path
    kind: str
    source: str

    @property
    def network(self) -> bool:
        return self.kind in NETWORK or self.kind.removeprefix("fuse.") in NETWORK_FUSE


def mount_of(path: Path, mountinfo: str | None = None) -> Mount | None:
    """The mount of `path`, also if `path` does not exist yet; None if /proc does not list it."""
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            return None
    real = path.resolve()
    over = [m for m in map(_mount, mountinfo.splitlines()) if m and real.is_relative_to(m.point)]
    # The later of two mounts on one point is on top.
    return max(reversed(over), key=lambda m: len(m.point.parts), default=None)


def _mount(line: str) -> Mount | None:
    left, separator, right = line.partition(" - ")
    before, after = left.split(), right.split()
    if not separator or len(before) < 5 or len(after) < 2:
        return None
    return Mount(Path(_unescaped(before[4])), after[0], _unescaped(after[1]))


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), text)


def network_problem(database: Path, mountinfo: str | None = None) -> str | None:
    """A sentence with a remedy if SQLite must not be at `database`; else None."""
    mount = mount_of(database, mountinfo)
    if mount is None or not mount.network:
        return None
    return (
        f"The database {database} would lie on a network file system ({mount.kind}, {mount.source}"
        f" on {mount.point}), where SQLite can lose data. Set GPUCOORD_DATA to a folder on a disk"
        " of this machine, or DATABASE_URL to a PostgreSQL database."
    )
