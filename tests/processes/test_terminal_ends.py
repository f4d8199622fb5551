"""A terminal ends with the login that opened it: no line typed after that is executed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from monitor.pages.hub import SIGNED_OUT
from tests.pace import LONGEST_S, Stopwatch
from tests.processes.service import Service, kill_jobs, token, wait_until

pytestmark = pytest.mark.processes
# An event ends it. A recheck of pages that only show something takes up to a minute.
AT_ONCE_S = 3.0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("terminal")
    try:
        with Service(folder / "data") as service:
            yield service
    finally:
        kill_jobs(folder / "data")


@pytest.fixture(scope="module")
def bearer(service: Service) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(service)}"}


@pytest.fixture
def job(service: Service, bearer: dict[str, str]) -> Iterator[int]:
    """A shell that counts the lines it executes."""
    body = {"argv": ["sh"], "interactive": True, "gpus": 0}
    with httpx.Client(base_url=service.address, headers=bearer, timeout=LONGEST_S) as client:
        number = client.post("/api/jobs/", json=body).json()["id"]
        wait_until(
            lambda: client.get(f"/api/jobs/{number}/").json()["state"] == "running", 20, "the shell"
        )
        yield number
        client.post(f"/api/jobs/{number}/cancel/")


class Browser:
    """A user who has logged in on the website."""

    def __init__(self, service: Service) -> None:
        self._address = service.address
        self._client = httpx.Client(base_url=service.address, timeout=LONGEST_S)
        self._client.get("/login/")
        self.post("/login/", username="admin", password="correct horse")

    def post(self, path: str, **fields: str) -> httpx.Response:
        key = self._client.cookies["gpucoord_csrf"]
        answer = self._client.post(path, data=fields | {"csrfmiddlewaretoken": key})
        assert answer.status_code == 302, answer.text
        return answer

    def close(self) -> None:
        self._client.close()

    def headers(self) -> dict[str, str]:
        return {"Cookie": f"gpucoord_session={self._client.cookies['gpucoord_session']}"}


@pytest.fixture
def log_in(service: Service) -> Iterator[Callable[[], Browser]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Browser(service)))


def terminal(service: Service, job: int, headers: dict[str, str]) -> ClientConnection:
    place = urlsplit(service.address).netloc
    address = f"ws://{place}/ws/jobs/{job}/terminal/"
    return connect(address, additional_headers=headers, origin=Origin(f"http://{place}"))


def executed(page: ClientConnection) -> int:
    """How many lines the shell has executed so far."""
    page.send(b"echo coun''ted $((n)).\r")
    seen = b""
    while (found := re.search(rb"counted (\d+)\.", seen)) is None:
        part = page.recv(LONGEST_S)
        seen += part if isinstance(part, bytes) else b""
    return int(found[1])


def type_until_closed(page: ClientConnection) -> tuple[int, float]:
    """The close code, and after how many seconds it came."""
    watch = Stopwatch()
    while not watch.has_run(70):
        try:
            page.send(b"n=$((n+1))\r")
            with suppress(TimeoutError):
                page.recv(0.02)
        except ConnectionClosed as closed:
            return (closed.rcvd.code if closed.rcvd else 0), watch.seconds
    raise AssertionError("the terminal is still open")


def typed_at_the_end(
    service: Service, job: int, bearer: dict[str, str], headers: dict[str, str],
    end_login: Callable[[], Any],
) -> tuple[int, int, bool]:  # fmt: skip
    """The close code, the lines executed after the end of the login, whether it ended at once."""
    with terminal(service, job, headers) as page:
        page.send(b"n=0\r")
        assert executed(page) == 0
        end_login()
        code, seconds = type_until_closed(page)
    with terminal(service, job, bearer) as again:
        return code, executed(again), seconds < AT_ONCE_S


ENDED = (SIGNED_OUT, 0, True)


def test_nothing_typed_after_the_logout_is_executed(
    service: Service, bearer: dict[str, str], job: int, log_in: Callable[[], Browser]
) -> None:
    browser = log_in()

    end = typed_at_the_end(
        service, job, bearer, browser.headers(), lambda: browser.post("/logout/")
    )

    assert end == ENDED


def test_nothing_typed_after_another_browser_ended_the_session_is_executed(
    service: Service, bearer: dict[str, str], job: int, log_in: Callable[[], Browser]
) -> None:
    old, new = log_in(), log_in()

    def end_others() -> None:
        new.post("/account/sessions/end/", others="yes")

    assert typed_at_the_end(service, job, bearer, old.headers(), end_others) == ENDED


def test_nothing_typed_after_the_token_was_revoked_is_executed(
    service: Service, bearer: dict[str, str], job: int, log_in: Callable[[], Browser]
) -> None:
    used = {"Authorization": f"Bearer {token(service)}"}
    browser = log_in()
    page = browser._client.get("/account/").text
    newest = max(map(int, re.findall(r"/account/tokens/(\d+)/revoke/", page)))

    end = typed_at_the_end(
        service, job, bearer, used, lambda: browser.post(f"/account/tokens/{newest}/revoke/")
    )

    assert end == ENDED
