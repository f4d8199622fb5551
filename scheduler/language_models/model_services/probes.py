"""Edge: health checks of instances and requests to sleep or wake by HTTP, and free ports."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

from monitor.owners.probes.listeners import listener_uids
from scheduler.runner import accounts

TIMEOUT_S = 5.0
CALL_S = 55.0
# Local servers answer within milliseconds; a slower answer counts at the next pass.
WAITS_S = 0.05
MOST_AT_ONCE = 8


def free_port() -> int:
    """A port of 127.0.0.1 on which no process listens now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


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
    # 5 MB of a process that runs no model.
    import httpx

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
    import httpx

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
