"""Edge: what the kernel and container runtimes say about the account and container of a process.

A folder counts only if others can't reach it, because open folders are mounted for their data.
The kernel says what is mounted, so neither labels nor names of paths can forge it.

The sockets are asked in a thread, so a runtime that hangs does not delay the sampler.
"""

from __future__ import annotations

import fcntl
import grp
import os
import pwd
import queue
import re
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from monitor.facts import input_rules
from monitor.facts.accounts import AccountRanges, Peer, is_person
from monitor.owners.policy import (
    Credentials,
    UidRange,
    agrees,
    container_id_of,
    container_of,
    job_cgroup_of,
    session_uid,
    subordinate_lines,
    uid_map_of,
)

# A container with more mounts, or more folders behind them, is not looked at: those that were left
# out could be another person's.
MOST_MOUNTS = 1000
MOST_SOURCES = 200


# The processes of a container have the same text.
@lru_cache(maxsize=32)
def sources(container: str, host: str) -> tuple[Path, ...]:
    """The folders of the host that a container mounts, from both texts of /proc/PID/mountinfo.

    Empty also for a container that mounts too much to be looked at.
    """
    if container.count("\n") > MOST_MOUNTS:
        return ()
    points, folders = _by_device(host), dict[Path, None]()
    for device, root, _ in _entries(container):
        for host_root, host_mount in points.get(device, ()):
            if (inner := _below(root, host_root)) is not None:
                folders[Path(host_mount) / inner] = None
                if len(folders) > MOST_SOURCES:
                    return ()
    return tuple(folders)


@lru_cache(maxsize=2)
def _by_device(host: str) -> Mapping[str, Sequence[tuple[str, str]]]:
    """Root and mount point of each mount of the host."""
    points: dict[str, list[tuple[str, str]]] = {}
    for device, root, mount in _entries(host):
        points.setdefault(device, []).append((root, mount))
    return points


def owners_of(folders: Iterable[Path]) -> frozenset[int]:
    """The uids of the persons in whose closed home folders these lie."""
    people = (_person(folder) for folder in folders)
    return frozenset(uid for uid in people if uid is not None)


def person_of_path(path: str) -> int | None:
    """The person in whose home folder a path of a label lies, closed or not. It proves nothing."""
    for above in (Path(path), *Path(path).parents):
        try:
            uid = above.stat().st_uid
            home = pwd.getpwuid(uid).pw_dir
        except (OSError, KeyError, ValueError):
            continue
        if is_person(uid) and Path(path).is_relative_to(home):
            return uid
    return None


def _person(folder: Path) -> int | None:
    try:
        uid = folder.stat().st_uid
        entry = pwd.getpwuid(uid)
        home = Path(entry.pw_dir).resolve()
        if not is_person(uid) or not folder.is_relative_to(home) or home == Path("/"):
            return None
        parts = [folder, *folder.parents]
        own = parts[: parts.index(home) + 1]
        return uid if any(_is_closed(part, entry) for part in own) else None
    except (OSError, KeyError):
        return None


def _is_closed(folder: Path, person: pwd.struct_passwd) -> bool:
    """Whether only its owner, who is this person, can enter it."""
    status = folder.stat()
    if status.st_uid != person.pw_uid or status.st_mode & stat.S_IXOTH:
        return False
    return not status.st_mode & stat.S_IXGRP or _is_own_group(status.st_gid, person)


def _is_own_group(gid: int, person: pwd.struct_passwd) -> bool:
    """Whether the group has no other member: it is called as its person."""
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == person.pw_name and set(group.gr_mem) <= {person.pw_name}


def _entries(text: str) -> Iterator[tuple[str, str, str]]:
    """(device, root, mount point) of each line of mountinfo."""
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) > 5:
            yield words[2], _unescaped(words[3]), _unescaped(words[4])


def _below(root: str, host_root: str) -> str | None:
    """The path of `root` below `host_root`; None: it lies elsewhere."""
    if root == host_root:
        return "."
    above = host_root.rstrip("/") + "/"
    return root.removeprefix(above) if root.startswith(above) else None


def _unescaped(path: str) -> str:
    if "\\" not in path:
        return path
    return re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), path)


SOCKETS = (Path("/run/docker.sock"), Path("/run/podman/podman.sock"))
# Labels that name a person, and labels with a path in the home folder of a person.
USER_LABELS = ("gpucoord.user",)
PATH_LABELS = ("devcontainer.local_folder", "com.docker.compose.project.working_dir")
JOB_LABEL = "gpucoord.job"
TIMEOUT_S = 2.0
LONGEST_ANSWER = 1 << 20
MOST_WAITING = 100
MOST_KEPT = 2000
# A runtime that did not know a container or did not answer is asked again after this time.
RETRY_S = 60.0
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,62}", re.ASCII)


class ContainerLabels(Struct, frozen=True):
    """people: uids, and names without account, that the labels name. is_known: they were read.

    job: the job that the label gpucoord.job names, "" = none.
    """

    name: str = ""
    job: str = ""
    people: frozenset[str | int] = frozenset()
    is_known: bool = True


NO_LABELS = ContainerLabels()
PENDING = ContainerLabels(is_known=False)


class ContainerRuntimes:
    """Remembers what the runtimes said. A socket that is absent or closed to us is skipped."""

    def __init__(self, sockets: Sequence[Path] | None = None) -> None:
        self._sockets = SOCKETS if sockets is None else sockets
        self._answers: dict[str, tuple[ContainerLabels, float]] = {}
        self._waiting: queue.Queue[str] = queue.Queue(MOST_WAITING)
        self._requested: set[str] = set()
        self._thread: threading.Thread | None = None

    def labels(self, container_id: str) -> ContainerLabels:
        """The known facts about it; PENDING until the runtimes have answered."""
        labels, until = self._answers.get(container_id, (PENDING, 0.0))
        if time.monotonic() < until:
            return labels
        if not any(socket.exists() for socket in self._sockets):
            return NO_LABELS
        self._ask_later(container_id)
        return labels

    def _ask_later(self, container_id: str) -> None:
        if container_id in self._requested or self._waiting.full():
            return
        self._requested.add(container_id)
        self._waiting.put_nowait(container_id)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="containers", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            try:
                container_id = self._waiting.get(timeout=10.0)
            except queue.Empty:
                return
            answer = self._ask(container_id)
            if len(self._answers) >= MOST_KEPT:
                self._answers.clear()
            is_answer = answer is not NO_LABELS
            lives = float("inf") if is_answer else time.monotonic() + RETRY_S
            self._answers[container_id] = (answer, lives)
            self._requested.discard(container_id)

    def _ask(self, container_id: str) -> ContainerLabels:
        # 5 MB of a process that sees no container.
        import httpx

        for path in self._sockets:
            try:
                answer = inspect(path, container_id)
            except (httpx.HTTPError, OSError, ValueError):
                continue
            if answer is not None:
                return labels_of(answer)
        return NO_LABELS


def inspect(socket: Path, container_id: str) -> Mapping[str, Any] | None:
    """The runtime's description of a container; None: it has no such container.

    Raises HTTPError, OSError or ValueError.
    """
    import httpx

    transport = httpx.HTTPTransport(uds=str(socket))
    with (
        httpx.Client(transport=transport, timeout=TIMEOUT_S, trust_env=False) as client,
        client.stream("GET", f"http://runtime/containers/{container_id}/json") as answer,
    ):
        if answer.status_code != 200:
            return None
        data = b""
        for part in answer.iter_bytes():
            data += part
            if len(data) > LONGEST_ANSWER:
                raise ValueError("the answer is too long")
    details = input_rules.parse_json(data)
    if not isinstance(details, dict):
        raise ValueError("the answer is no object")
    return details


def labels_of(answer: Mapping[str, Any]) -> ContainerLabels:
    """The name, and the users in the labels; other parts of the answer are left out."""
    name = str(answer.get("Name") or "").lstrip("/")
    config = answer.get("Config")
    given = config.get("Labels") if isinstance(config, dict) else None
    labels = given if isinstance(given, dict) else {}
    people: set[str | int] = set()
    for label in USER_LABELS:
        if text := str(labels.get(label) or ""):
            people.add(_uid(text))
    for label in PATH_LABELS:
        path = str(labels.get(label) or "")
        if path.startswith("/") and (uid := person_of_path(path)) is not None:
            people.add(uid)
    job = str(labels.get(JOB_LABEL) or "")
    return ContainerLabels(
        name=name if _NAME.fullmatch(name) else "",
        job=job if job.isascii() and job.isdecimal() and len(job) < 19 else "",
        people=frozenset(people),
    )


def _uid(name: str) -> str | int:
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return name


SUBUID = Path("/etc/subuid")
LOGIN_DEFS = Path("/etc/login.defs")
# Of the ioctls on namespaces (ioctl_ns(2)).
NS_GET_OWNER_UID = 0xB704
UNNAMED = "container"
_LONGEST = 1 << 20
_LINE = 4096
# No process has more parents in practice.
_MOST_PARENTS = 64
_INIT = 1

Read = Callable[[int | str, str, int], bytes | None]


class CredentialReader:
    """`read(pid, name, size)` reads a file of a process below `proc`."""

    def __init__(
        self,
        read: Read,
        proc: str,
        subuid: Path = SUBUID,
        runtimes: ContainerRuntimes | None = None,
    ) -> None:
        self._runtimes = runtimes
        self._read = read
        self._proc = proc
        self._subuid = subuid
        self._stamp: tuple[int, int] | None = None
        self._ranges: tuple[UidRange, ...] = ()
        # gpucoord may run in a container itself: its own world is its host.
        self._own_container = container_of(self._text("self", "cgroup"))
        self._own_map = self._text("self", "uid_map").split()
        self._own_namespace = self._link("self")

    def of(self, pid: int) -> Credentials:
        status = self._text(pid, "status")
        cgroup = self._text(pid, "cgroup")
        uids = words_of(status, "Uid")
        is_nested = len(words_of(status, "NSpid")) > 1
        is_in_host = self._is_in_host_namespace(pid)
        bare = Credentials(
            uid=int(uids[0]) if uids else None,
            login_uid=self._login_uid(pid),
            job_cgroup=job_cgroup_of(cgroup),
            is_in_host_namespace=is_in_host,
            has_host_mounts=not is_nested and self._has_host_mounts(pid),
            uid_map=() if is_in_host else uid_map_of(self._text(pid, "uid_map")),
            namespace_owner_uid=None if is_in_host else self._namespace_owner(pid),
            entered_uid=None if is_in_host else self._entered_uid(pid),
            session_uid=session_uid(cgroup),
        )
        container = container_of(cgroup)
        if container is not None and container == self._own_container:
            container = None
        elif container is None and is_nested and not agrees(bare):
            container = UNNAMED
        if container is None:
            return bare
        labels = self._labels(cgroup)
        return replace(
            bare,
            container=f"{container} ({labels.name})" if labels.name else container,
            mount_owners=self._mount_owners(pid),
            labelled=labels.people,
            labelled_job=labels.job,
            is_labelled_known=labels.is_known,
        )

    def _labels(self, cgroup: str) -> ContainerLabels:
        """The runtime's facts about the container; NO_LABELS without a runtime to ask."""
        container_id = container_id_of(cgroup)
        if self._runtimes is None or container_id is None:
            return NO_LABELS
        return self._runtimes.labels(container_id)

    def _mount_owners(self, pid: int) -> frozenset[int]:
        own = (self._read("self", "mountinfo", _LONGEST) or b"").decode(errors="replace")
        its = (self._read(pid, "mountinfo", _LONGEST) or b"").decode(errors="replace")
        return owners_of(sources(its, own))

    def subordinate(self) -> tuple[UidRange, ...]:
        """The ranges of /etc/subuid; read again when the file has changed."""
        try:
            status = self._subuid.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp != self._stamp:
                text = self._subuid.read_bytes()[:_LONGEST].decode(errors="replace")
                self._ranges, self._stamp = tuple(_ranges(text)), stamp
        except OSError:
            self._ranges, self._stamp = (), None
        return self._ranges

    def _is_in_host_namespace(self, pid: int) -> bool:
        """By the namespace itself; where its link cannot be read, by an equal uid map."""
        link = self._link(pid)
        if link and self._own_namespace:
            return link == self._own_namespace
        own, its = self._own_map, self._text(pid, "uid_map").split()
        return not own or its == own

    def _has_host_mounts(self, pid: int) -> bool:
        """Whether its first mount is that of the first process, by its number and place.

        Each mount namespace numbers its mounts anew, and a changed root shows other places.
        """
        own, its = self._first_mount(_INIT), self._first_mount(pid)
        return own is None or its is None or own == its

    def _first_mount(self, pid: int) -> bytes | None:
        text = self._read(pid, "mountinfo", _LINE)
        return None if text is None else text.partition(b"\n")[0]

    def _entered_uid(self, pid: int) -> int | None:
        """The account of its nearest parent in the host's user namespace; None: init's child."""
        for _ in range(_MOST_PARENTS):
            status = self._text(pid, "status")
            parents, uids = words_of(status, "PPid"), words_of(status, "Uid")
            if self._is_in_host_namespace(pid):
                return int(uids[0]) if uids else None
            if not parents or int(parents[0]) <= _INIT:
                return None
            pid = int(parents[0])
        return None

    def _link(self, pid: int | str) -> str:
        try:
            return os.readlink(f"{self._proc}/{pid}/ns/user")  # noqa: PTH115 - a Path is slower
        except OSError:
            return ""

    def _namespace_owner(self, pid: int) -> int | None:
        try:
            fd = os.open(f"{self._proc}/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            answer = bytearray(4)
            fcntl.ioctl(fd, NS_GET_OWNER_UID, answer)
            return int.from_bytes(answer, sys.byteorder)
        except OSError:
            return None
        finally:
            os.close(fd)

    def _login_uid(self, pid: int) -> int | None:
        """The account that logged in to start it; the kernel keeps that across sudo and su."""
        text = self._text(pid, "loginuid").strip()
        return int(text) if text.isdecimal() else None

    def _text(self, pid: int | str, name: str) -> str:
        return (self._read(pid, name, 8192) or b"").decode(errors="replace")


def account_ranges(path: Path = LOGIN_DEFS) -> AccountRanges:
    """The ranges of this host's uids. Without the file, or with odd values, the usual ones."""
    try:
        lines = path.read_bytes()[:_LONGEST].decode(errors="replace").splitlines()
    except OSError:
        return AccountRanges()
    names = {name.upper(): name for name in AccountRanges.__struct_fields__}
    pairs = [words for line in lines if len(words := line.split()) > 1]
    values = {names[w[0]]: int(w[1]) for w in pairs if w[0] in names and w[1].isdecimal()}
    return AccountRanges(**values)


def words_of(status: str, field: str) -> list[str]:
    """The words after the name of a field of /proc/PID/status."""
    _, _, rest = status.partition(f"\n{field}:")
    return rest.partition("\n")[0].split()


def _ranges(text: str) -> list[UidRange]:
    ranges = []
    for name, first, count in subordinate_lines(text):
        try:
            uid = int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
        except (KeyError, OSError):
            continue
        ranges.append(UidRange(first, count, uid))
    return ranges


_CREDENTIALS = struct.Struct("3i")
# Linux 6.5; a handle of the very process that connected, also after its pid was used again.
SO_PEERPIDFD = 77
_LONGEST_OF_PEERS = 65_536
# Names of the processes above a job (scheduler/runner/guardian.py), as the kernel cuts them.
RUNNERS = {"gpucoord-guard", "gpucoord-runner"}
_JOB_MARK = b"GPUCOORD_NONCE="


def credentials(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that connected, or that listens."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


class PeerReader:
    """Describes peers; their groups only where the rule needs them, as LDAP can be slow."""

    def __init__(self, *, with_groups: bool = False, proc: Path = Path("/proc")) -> None:
        self._proc, self._with_groups = proc, with_groups
        self._credentials = CredentialReader(self._read, str(proc))

    def describe(self, connection: socket.socket) -> Peer:
        """The connected process. `problem` says what can't be read; nothing is guessed."""
        pid, uid = credentials(connection)
        if pid <= 0:
            return Peer(pid=pid, uid=uid, problem="it is in another pid namespace")
        handle = _pid_handle(connection)
        try:
            return self._of_process(pid, uid, handle)
        finally:
            if handle is not None:
                os.close(handle)

    def _of_process(self, pid: int, uid: int, handle: int | None) -> Peer:
        start = self._start_ticks(pid)
        credentials = self._credentials.of(pid)
        is_of_job = self._is_of_job(pid)
        name, groups = _account(uid, with_groups=self._with_groups)
        # All of it was read about one process only if that process is still there.
        is_same = start is not None and start == self._start_ticks(pid)
        if not is_same or (handle is not None and not _is_alive(handle)):
            return Peer(pid=pid, uid=uid, account=name, problem="it has ended")
        if credentials.uid is None:
            return Peer(pid=pid, uid=uid, account=name, problem="/proc does not show it")
        return Peer(
            pid=pid,
            uid=uid,
            account=name,
            groups=groups,
            container=credentials.container,
            is_in_host_namespace=credentials.is_in_host_namespace,
            is_service=uid == os.geteuid(),
            is_of_job=is_of_job,
        )

    def _is_of_job(self, pid: int) -> bool:
        """By its parents, its environment, or the mark that Landlock leaves for good."""
        if _JOB_MARK in (self._read(pid, "environ", _LONGEST_OF_PEERS) or b""):
            return True
        if os.geteuid() != 0 and self._has_no_new_privileges(pid):
            return True
        depth = 0
        parent: int | None = pid
        while parent is not None and parent > 1 and depth < _MOST_PARENTS:
            if self._name(parent) in RUNNERS:
                return True
            parent, depth = self._parent(parent), depth + 1
        return False

    def _has_no_new_privileges(self, pid: int) -> bool:
        status = self._read(pid, "status", _LONGEST_OF_PEERS) or b""
        return re.search(rb"^NoNewPrivs:\s*1$", status, re.MULTILINE) is not None

    def _name(self, pid: int) -> str:
        return (self._read(pid, "comm", 64) or b"").decode(errors="replace").strip()

    def _parent(self, pid: int) -> int | None:
        fields = self._stat(pid)
        return int(fields[1]) if len(fields) > 1 else None

    def _start_ticks(self, pid: int) -> int | None:
        fields = self._stat(pid)
        return int(fields[19]) if len(fields) > 19 else None

    def _stat(self, pid: int) -> list[bytes]:
        return (self._read(pid, "stat", 4096) or b"").rpartition(b")")[2].split()

    def _read(self, pid: int | str, name: str, size: int) -> bytes | None:
        with suppress(OSError), (self._proc / str(pid) / name).open("rb") as file:
            return file.read(size)
        return None


def _pid_handle(connection: socket.socket) -> int | None:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:
        return None


def _is_alive(handle: int) -> bool:
    """Whether the process of this pidfd has not ended and been collected."""
    with suppress(OSError):
        text = Path(f"/proc/self/fdinfo/{handle}").read_text()
        pid_line = re.search(r"^Pid:\s*(-?\d+)$", text, re.MULTILINE)
        return pid_line is not None and int(pid_line[1]) > 0
    return False


def _account(uid: int, *, with_groups: bool) -> tuple[str | None, frozenset[str]]:
    """The account's name and the names of its groups, by NSS. No account: (None, none)."""
    try:
        entry = pwd.getpwuid(uid)
    except (KeyError, OSError):
        return None, frozenset()
    if entry.pw_uid != uid:
        return None, frozenset()
    names = set()
    for gid in os.getgrouplist(entry.pw_name, entry.pw_gid) if with_groups else ():
        with suppress(KeyError, OSError):
            names.add(grp.getgrgid(gid).gr_name)
    return entry.pw_name, frozenset(names)
