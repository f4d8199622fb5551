"""Edge: the isolation features of this machine, in words."""

from __future__ import annotations

import errno
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

from msgspec import Struct

from scheduler.execution.policy import PERIOD_S, BoundsPolicy
from scheduler.jobs.probes import CHUNK, LogPiece
from scheduler.runner.confine.cgroups import CgroupParent

KINDS = {"v1": "cgroup version 1", "v2": "cgroup version 2", "systemd": "a scope of systemd"}


class Capability(Struct, frozen=True, kw_only=True):
    """An isolation feature. active: jobs use it."""

    name: str
    active: bool
    text: str


def describe(
    place: CgroupParent, *, minors: int, mps: str | None, locks: str | None, policy: BoundsPolicy
) -> list[Capability]:
    """The isolation features, as probed, in words."""
    return [
        _cgroup(place, policy),
        _hiding(place, minors, policy),
        _share(place, mps, policy),
        Capability(
            name="mps",
            active=bool(mps),
            text=f"daemon found in {mps}" if mps else "no MPS daemon on this host",
        ),
        Capability(
            name="locks",
            active=locks is not None,
            text=f"{locks}/gpu.lock, gpu0.lock, …" if locks else "none",
        ),
    ]


def _cgroup(place: CgroupParent, policy: BoundsPolicy) -> Capability:
    if not place.kind:
        text = f"jobs are followed by their process tree only ({place.problem})"
    elif not policy.cgroup:
        text = f"{KINDS[place.kind]} is available, but switched off in the thresholds"
    else:
        limits = [name for name in ("cpu", "memory", "pids") if name in place.can]
        kill = "whole group" if {"kill", "freeze"} & place.can else "process by process"
        text = f"{KINDS[place.kind]}; limits: {', '.join(limits) or 'none'}; kill: {kill}"
    return Capability(name="cgroup", active=bool(place.kind and policy.cgroup), text=text)


def _hiding(place: CgroupParent, minors: int, policy: BoundsPolicy) -> Capability:
    works = bool({"devices", "bpf"} & place.can)
    active = works and bool(minors) and policy.hide_gpus and policy.cgroup
    if active:
        how = "the cgroup's list of devices" if "devices" in place.can else "a BPF program"
        text = f"by {how}; CUDA_VISIBLE_DEVICES is set too"
    else:
        missing = "this host has no GPU device files" if works else "more needs root and cgroups"
        text = f"CUDA_VISIBLE_DEVICES only, which a job can change ({missing})"
    return Capability(name="hiding", active=active, text=text)


def _share(place: CgroupParent, mps: str | None, policy: BoundsPolicy) -> Capability:
    if mps:
        how = "by MPS"
    elif "freeze" in place.can and policy.cgroup:
        how = f"by freezing the job for parts of {PERIOD_S:g} s"
    else:
        how = f"by SIGSTOP for parts of {PERIOD_S:g} s; the job's parent may notice"
    return Capability(name="share", active=True, text=how)


# Ports of this machine: the range of outgoing connections, and whether a port is free.

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
# The default of Linux.
USUAL = range(32_768, 61_000)


def ephemeral() -> range:
    """The ports that the kernel gives to outgoing connections."""
    try:
        first, last = map(int, EPHEMERAL.read_text().split())
    except (OSError, ValueError):
        return USUAL
    return range(first, last + 1)


def are_free(ports: range) -> bool:
    """Whether a program may listen on each of these TCP ports now, on all addresses."""
    return all(_is_free(port) for port in ports)


def _is_free(port: int) -> bool:
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104
        try:
            with socket.socket(family, socket.SOCK_STREAM) as listener:
                if family is socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind((address, port))
        except OSError as error:
            # A machine without IPv6.
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
    return True


# Edge: the log of a job on another host, read through the service there.


LONGEST_S = 3.0
LARGEST = 8 * 1024**2
START, SIZE = "X-Log-Start", "X-Log-Size"
# A proxy in the environment leads to the internet, for alert channels; it may not reach the hosts.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Unreachable(OSError):
    """The other host does not answer; the text says why."""


@dataclass(frozen=True, slots=True)
class RemoteLog:
    """A log by byte offset, like a file. Each read is one request.

    ticket: makes a signed text for (offset, limit), which the other host checks. pages: the address
    of its pages; "" = it has none.
    """

    host: str
    address: str
    job_id: int
    number: int
    ticket: Callable[[int, int], str] = field(compare=False)
    pages: str = ""

    def read(self, offset: int = 0, limit: int = CHUNK) -> LogPiece:
        """Raises Unreachable."""
        url = f"{self.address.rstrip('/')}/internal/log/{self.ticket(offset, limit)}/"
        try:
            # The address is that of a registered host.
            with DIRECT.open(url, timeout=LONGEST_S) as answer:
                data = answer.read(LARGEST)
                start, size = int(answer.headers[START]), int(answer.headers[SIZE])
        except urllib.error.HTTPError as error:
            with error:
                raise Unreachable(_refusal(error.code)) from None
        except (OSError, ValueError, TypeError) as error:
            raise Unreachable(str(getattr(error, "reason", error))[:200]) from None
        return LogPiece(start, data, size)

    def tail(self, limit: int = CHUNK) -> LogPiece:
        """The last `limit` bytes. Raises Unreachable."""
        return self.read(-limit, limit)

    def size(self) -> int:
        """Raises Unreachable."""
        return self.read(0, 0).size


def _refusal(code: int) -> str:
    if code == HTTPStatus.FORBIDDEN:
        return "it refused the signature, so its secret_key or its clock differs from this host's"
    return f"it answered {code}"
