"""Edge: what the kernel says about the account and the container of a process."""

from __future__ import annotations

import fcntl
import os
import pwd
import sys
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from monitor.facts.accounts import AccountRanges
from monitor.owners.identity.policy import (
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
from monitor.owners.identity.probes import homes
from monitor.owners.identity.probes.runtimes import NO_LABELS, ContainerLabels, ContainerRuntimes

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
        return homes.owners_of(homes.sources(its, own))

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
