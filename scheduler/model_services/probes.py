"""Edge: health checks of instances by HTTP, and free ports."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

import httpx

TIMEOUT_S = 5.0
# Local servers answer within milliseconds; a slower answer counts at the next pass.
WAITS_S = 0.05
MOST_AT_ONCE = 8


def free_port() -> int:
    """A port of 127.0.0.1 on which no process listens now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


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


class HealthProbe:
    """Checks instances in threads, so that a server that hangs delays nobody.

    `results` is asked at each pass; an answer that is late is in the next result.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._asked: dict[int, Future[bool]] = {}

    def results(self, urls: Mapping[int, str]) -> dict[int, bool]:
        """By instance: whether it answers. Left out: it has not answered yet."""
        if not urls:
            self._asked = {}
            return {}
        if self._pool is None:
            self._pool = ThreadPoolExecutor(MOST_AT_ONCE, "model-health")
        for id_, url in urls.items():
            if id_ not in self._asked:
                self._asked[id_] = self._pool.submit(answers, url)
        self._asked = {id_: future for id_, future in self._asked.items() if id_ in urls}
        done, _ = wait(self._asked.values(), WAITS_S)
        found = {id_: one.result() for id_, one in self._asked.items() if one in done}
        for id_ in found:
            del self._asked[id_]
        return found

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None
        self._asked = {}
