"""Cost of live pages: python -m tests.bench.bench_live [seconds].

Everything is real: `gpucoord up` with a simulated server, WebSockets, Chromium. Latency is from
the clock that the sampler's tick read (before its probe and its database write) to the arrival
of the first frame with it at the client; what else of the page changes follows in frames of its
own. Clients share the machine's cores with the service.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import sync_playwright

from tests.browser.conftest import OPTIONS
from tests.processes.service import Service

VIEWERS = (1, 100, 500)
# The service takes 60 sockets of one user, so many viewers are several users.
VIEWERS_PER_USER = 50
ACK_EVERY = 4
TAKEN_AT = re.compile(rb'"n":(\d+),"since":\d+,"t":([\d.]+)')


def main() -> None:
    if sys.argv[1:2] == ["sessions"]:
        return print_sessions(int(sys.argv[2]))
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    with running(8) as service:
        latencies(service, seconds)
        sizes(service, 8)
        chromium(service, 8, seconds)
    with running(64, GPUCOORD_SIMULATED_PROCESSES="500") as service:
        sizes(service, 64)
        chromium(service, 64, seconds)


@contextmanager
def running(gpus: int, **env: str) -> Iterator[Service]:
    with tempfile.TemporaryDirectory(prefix="gpucoord-bench-") as folder:
        service = Service(Path(folder) / "data", GPUCOORD_SIMULATED_GPUS=str(gpus), **env)
        with service:
            time.sleep(3)
            yield service


def log_in(service: Service, viewers: int) -> list[str]:
    """For each viewer the cookie of a browser in which a user is logged in."""
    users = -(-viewers // VIEWERS_PER_USER)
    made = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_live", "sessions", str(users)],
        env=service._env,
        cwd=service.root,
        capture_output=True,
        check=True,
        text=True,
    )
    return [cookie for cookie in made.stdout.split() for _ in range(VIEWERS_PER_USER)][:viewers]


def print_sessions(users: int) -> None:
    """Make users who see everything; print a cookie of each."""
    import django

    django.setup()
    from django.conf import settings
    from django.contrib.auth.models import User
    from django.test import Client

    for number in range(users):
        user, _ = User.objects.get_or_create(
            username=f"viewer-{number}", is_staff=True, is_superuser=True
        )
        client = Client()
        client.force_login(user)
        print(
            f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"
        )


class Viewer(asyncio.Protocol):
    """A browser's end of the socket in few instructions: 500 of them share a core with others."""

    def __init__(self, address: str, cookie: str, path: str = "/ws/live/?on=dashboard") -> None:
        self.address = address
        self.host = urlsplit(address).netloc
        self.cookie = cookie
        self.path = path
        self.delays: list[float] = []
        self.sizes: list[int] = []
        self.first = b""
        self.newest = 0.0
        self._buffer = b""
        self._open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        key = base64.b64encode(os.urandom(16)).decode()
        transport.write(
            f"GET {self.path} HTTP/1.1\r\nHost: {self.host}\r\nOrigin: http://{self.host}\r\n"
            f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {key}\r\nCookie: {self.cookie}\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        arrived = time.time()
        self._buffer += data
        if not self._open:
            head, _, rest = self._buffer.partition(b"\r\n\r\n")
            if not rest and b"\r\n\r\n" not in self._buffer:
                return
            assert b" 101 " in head, head
            self._open, self._buffer = True, rest
        while (frame := self._frame()) is not None:
            self._take(frame, arrived)

    def _frame(self) -> bytes | None:
        if len(self._buffer) < 2:
            return None
        size, start = self._buffer[1] & 127, 2
        if size == 126:
            size, start = int.from_bytes(self._buffer[2:4]), 4
        elif size == 127:
            size, start = int.from_bytes(self._buffer[2:10]), 10
        if len(self._buffer) < start + size:
            return None
        frame, self._buffer = self._buffer[start : start + size], self._buffer[start + size :]
        return frame

    def _take(self, frame: bytes, arrived: float) -> None:
        found = TAKEN_AT.search(frame)
        if not found:
            return
        if not self.first:
            self.first = frame
            return
        taken, self.newest = self.newest, float(found[2])
        if self.newest > taken:
            self.delays.append(arrived - self.newest)
        self.sizes.append(len(frame))
        if len(self.sizes) % ACK_EVERY == 0:
            self._say(json.dumps({"ack": int(found[1])}).encode())

    def _say(self, text: bytes) -> None:
        self.transport.write(struct.pack("!BB4x", 0x81, 0x80 | len(text)) + text)


async def watch(service: Service, viewers: int, seconds: float) -> tuple[list[Viewer], float]:
    """So many viewers for so long; also the share of a core that the web process took, in %."""
    loop = asyncio.get_running_loop()
    place = urlsplit(service.address)
    found: list[Viewer] = []
    for cookie in log_in(service, viewers):
        viewer = Viewer(service.address, cookie)
        await loop.create_connection(lambda v=viewer: v, place.hostname, place.port)  # type: ignore[misc]
        found.append(viewer)
    # A busy machine takes a while to accept hundreds of sockets.
    await asyncio.sleep(3 + viewers / 50)
    assert all(viewer.first for viewer in found)
    for viewer in found:
        viewer.delays.clear()
    before = cpu_seconds(service.child("web"))
    await asyncio.sleep(seconds)
    used = 100 * (cpu_seconds(service.child("web")) - before) / seconds
    for viewer in found:
        viewer.transport.close()
    return found, used


def latencies(service: Service, seconds: int) -> None:
    print(f"{'sample -> client, ms':24}{'p50':>8}{'p90':>8}{'p99':>8}{'max':>8}{'web CPU %':>12}")
    for viewers in VIEWERS:
        found, used = asyncio.run(watch(service, viewers, seconds))
        delays = [delay for viewer in found for delay in viewer.delays]
        cuts = statistics.quantiles(delays, n=100, method="inclusive")
        figures = (cuts[49], cuts[89], cuts[98], max(delays))
        columns = "".join(f"{1000 * figure:8.1f}" for figure in figures)
        print(f"{viewers:4} viewers {len(delays):6} frames {columns}{used:12.1f}")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sizes(service: Service, gpus: int) -> None:
    (viewer,), _ = asyncio.run(watch(service, 1, 10))
    print(
        f"{gpus} GPUs: each second {statistics.median(viewer.sizes):.0f} B (median;"
        f" largest {max(viewer.sizes)} B), the whole at connect {len(viewer.first)} B"
    )


def chromium(service: Service, gpus: int, seconds: int) -> None:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=OPTIONS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(f"{service.address}login/")
        page.get_by_label("User name").fill("admin")
        page.get_by_label("Password").fill("correct horse")
        page.get_by_role("button", name="Log in").click()
        page.wait_for_selector("#connection[data-state=live]")
        for where in ("/", "/processes/"):
            page.goto(service.address.rstrip("/") + where)
            page.wait_for_selector("#connection[data-state=live]")
            page.wait_for_timeout(3000)
            devtools = page.context.new_cdp_session(page)
            # CPU time, which other processes of the machine hardly change.
            devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
            before = _metrics(devtools)
            page.wait_for_timeout(1000 * seconds)
            after = _metrics(devtools)
            parts = ("TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration")
            spent = [1000 * (after[part] - before[part]) / seconds for part in parts]
            print(
                f"{gpus} GPUs, {where}: main thread {spent[0]:.1f} ms per second"
                f" (script {spent[1]:.1f}, layout {spent[2]:.1f}, style {spent[3]:.1f})"
            )
        browser.close()


def _metrics(devtools: object) -> dict[str, float]:
    found = devtools.send("Performance.getMetrics")["metrics"]  # type: ignore[attr-defined]
    return {metric["name"]: metric["value"] for metric in found}


if __name__ == "__main__":
    main()
