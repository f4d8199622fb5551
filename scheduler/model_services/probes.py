"""Edge: health checks of instances and requests to sleep or wake by HTTP, and free ports."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import httpx

from scheduler.runner import accounts

TIMEOUT_S = 5.0
CALL_S = 55.0
# Local servers answer within milliseconds; a slower answer counts at the next pass.
WAITS_S = 0.05
MOST_AT_ONCE = 8
# From linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, TCP_LISTEN = 4, 20, 10
NLM_F_REQUEST, NLM_F_DUMP, NLMSG_DONE = 0x1, 0x300, 3
NETLINK_HEAD = struct.Struct("=IHHII")
DIAG_REQUEST = struct.Struct("=BBBBI48s")
# The port of the socket and its uid; the rest is skipped.
DIAG_ANSWER = struct.Struct("=4x2s46x12xI")
# The state of a socket in /proc/net/tcp.
LISTENS = "0A"


def free_port() -> int:
    """A port of 127.0.0.1 on which no process listens now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def listener_uids(port: int) -> frozenset[int]:
    """The accounts whose processes listen on the port, on any address of this host."""
    try:
        families = (socket.AF_INET, socket.AF_INET6)
        listening = [pair for family in families for pair in _listeners(family)]
    except OSError:
        return _listed_uids(port)
    return frozenset(uid for of, uid in listening if of == port)


def _listeners(family: int) -> Iterator[tuple[int, int]]:
    """Ports and accounts of listening sockets, from the kernel; see sock_diag(7).

    It does not walk through all connections of the host, as /proc/net/tcp does.
    """
    body = DIAG_REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << TCP_LISTEN, bytes(48))
    size = NETLINK_HEAD.size + len(body)
    head = NETLINK_HEAD.pack(size, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(1.0)
        netlink.send(head + body)
        while True:
            answer = netlink.recv(65_536)
            at = 0
            while at + NETLINK_HEAD.size <= len(answer):
                size, kind, *_ = NETLINK_HEAD.unpack_from(answer, at)
                if kind == NLMSG_DONE:
                    return
                if kind != SOCK_DIAG_BY_FAMILY or size < NETLINK_HEAD.size:
                    raise OSError("sock_diag is not available")
                port, uid = DIAG_ANSWER.unpack_from(answer, at + NETLINK_HEAD.size)
                yield int.from_bytes(port, "big"), uid
                at += (size + 3) & ~3


def _listed_uids(port: int) -> frozenset[int]:
    """The same from /proc, where the kernel does not answer otherwise."""
    uids = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, _, state, _, _, _, uid, *_ = line.split()
                if state == LISTENS and int(local.rpartition(":")[2], 16) == port:
                    uids.add(int(uid))
    return frozenset(uids)


def is_taken(port: int, uid: int | None) -> bool:
    """Whether a process of another account than `uid` listens on an instance's port.

    It would get the prompts of all users. None: the account of gpucoord. Root may listen, as the
    engine of a container does.
    """
    return not listener_uids(port) <= {0, os.geteuid(), uid}


def uid_of(account: str, run_as: str) -> int | None:
    """The uid of a service's instances; None: that of gpucoord, or there is no such account."""
    try:
        return accounts.account_of_service(account, run_as=run_as).uid
    except accounts.MissingAccount:
        return None


def answers(url: str, timeout_s: float = TIMEOUT_S) -> bool:
    """Whether a GET of the address answers with a status below 400."""
    try:
        # Neither a proxy nor a password file of the service's environment.
        with (
            httpx.Client(timeout=timeout_s, trust_env=False) as client,
            client.stream("GET", url) as answer,
        ):
            return answer.status_code < 400
    except (httpx.HTTPError, httpx.InvalidURL, OSError):
        return False


def does(url: str, timeout_s: float = CALL_S) -> bool:
    """Whether the server did what a POST to the address asks for."""
    try:
        with httpx.Client(timeout=timeout_s, trust_env=False) as client:
            return client.post(url).status_code < 400
    except (httpx.HTTPError, httpx.InvalidURL, OSError):
        return False


class HealthProbe:
    """Checks instances in threads, so that a server that hangs delays no other.

    `results` is asked at each pass; an answer that is late is in the next result.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._checks: dict[int, Future[bool]] = {}
        self._called: dict[tuple[int, str], Future[bool]] = {}

    def results(self, urls: Mapping[int, str]) -> dict[int, bool]:
        """By instance: whether it answers. Left out: it has not answered yet."""
        if not urls:
            self._checks = {}
            return {}
        for id_, url in urls.items():
            if id_ not in self._checks:
                self._checks[id_] = self._submit(answers, url)
        self._checks = {id_: future for id_, future in self._checks.items() if id_ in urls}
        done, _ = wait(self._checks.values(), WAITS_S)
        results = {id_: future.result() for id_, future in self._checks.items() if future in done}
        for id_ in results:
            del self._checks[id_]
        return results

    def calls(self, urls: Mapping[int, str]) -> dict[int, bool]:
        """By instance: whether its server did what the address asks for. Left out: no answer yet.

        A call is made once; after a restart it is repeated, so it must be idempotent.
        """
        if not urls:
            self._called = {}
            return {}
        due = set(urls.items())
        self._called = {key: call for key, call in self._called.items() if key in due}
        for key in due - self._called.keys():
            self._called[key] = self._submit(does, key[1])
        wait(self._called.values(), WAITS_S)
        return {id_: call.result() for (id_, _), call in self._called.items() if call.done()}

    def _submit(self, action: Callable[[str], bool], url: str) -> Future[bool]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(MOST_AT_ONCE, "model-health")
        return self._pool.submit(action, url)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None
        self._checks, self._called = {}, {}
