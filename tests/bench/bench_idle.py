"""Cost of gpucoord when nothing happens: python -m tests.bench.bench_idle [seconds].

`gpucoord up` with 8 simulated GPUs and one viewer of the dashboard. CPU time and memory (PSS) of
all its processes; before that, how long after the command the first live frame is there, on the
first start (which makes the database) and on the next.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from websockets.exceptions import InvalidHandshake
from websockets.sync.client import ClientConnection, connect

from tests.processes.service import Service
from tests.service.postgres_cluster import free_port

SETTLE_S = 10.0
ACK_EVERY = 4
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    with tempfile.TemporaryDirectory(prefix="gpucoord-bench-") as folder:
        service = Service(Path(folder) / "data")
        port = str(free_port())
        cookie = ""
        for turn in ("first start", "next start"):
            begun = time.time()
            starter = threading.Thread(target=service.start, args=("--port", port))
            starter.start()
            try:
                cookie = cookie or log_in(port)
                with first_frame(port, cookie, begun) as (viewer, took):
                    starter.join()
                    print(f"{turn:12} command -> first live frame  {took:6.2f} s")
                    if turn == "next start":
                        measure(service, viewer, seconds)
            finally:
                service.stop()


def log_in(port: str) -> str:
    """A session of the administrator; waits until pages are served."""
    base = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=base) as browser:
        page = until_served(browser)
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        form = {"username": "admin", "password": "correct horse"}
        browser.post("/login/", data=form | {"csrfmiddlewaretoken": token[1] if token else ""})
        return f"gpucoord_session={browser.cookies['gpucoord_session']}"


def until_served(browser: httpx.Client) -> httpx.Response:
    while True:
        try:
            return browser.get("/login/")
        except httpx.TransportError:
            time.sleep(0.02)


@contextmanager
def first_frame(port: str, cookie: str, begun: float) -> Iterator[tuple[ClientConnection, float]]:
    """A viewer, once it has been sent readings that were taken after the command."""
    viewer = watch(port, cookie)
    with viewer:
        while (json.loads(viewer.recv(timeout=30)).get("t") or 0) < begun:
            pass
        yield viewer, time.time() - begun


def watch(port: str, cookie: str) -> ClientConnection:
    headers = {"Cookie": cookie, "Origin": f"http://127.0.0.1:{port}"}
    while True:
        try:
            return connect(
                f"ws://127.0.0.1:{port}/ws/live/?on=dashboard",
                additional_headers=headers,
                max_size=None,
            )
        except (OSError, InvalidHandshake):
            time.sleep(0.02)


def measure(service: Service, viewer: ClientConnection, seconds: float) -> None:
    frames = [0]
    reader = threading.Thread(target=acknowledge, args=(viewer, frames), daemon=True)
    reader.start()
    time.sleep(SETTLE_S)
    before, began, seen = cpu_s(service), time.monotonic(), frames[0]
    time.sleep(seconds)
    passed = time.monotonic() - began
    used = {pid: s - before.get(pid, 0.0) for pid, s in cpu_s(service).items()}
    print(f"over {passed:.0f} s, {(frames[0] - seen) / passed:.2f} frames/s to 1 viewer")
    print(f"{'CPU of one core':40}{100 * sum(used.values()) / passed:6.2f} %")
    sizes = {pid: pss_mb(pid) for pid in used}
    print(f"{'memory (PSS) of ' + str(len(sizes)) + ' processes':40}{sum(sizes.values()):6.0f} MB")
    for pid in sorted(used, key=lambda pid: -used[pid]):
        print(f"  {pid:>8} {name(pid):20} {100 * used[pid] / passed:6.2f} % {sizes[pid]:6.0f} MB")


def acknowledge(viewer: ClientConnection, frames: list[int]) -> None:
    for text in viewer:
        frames[0] += 1
        if frames[0] % ACK_EVERY == 0:
            viewer.send(json.dumps({"ack": json.loads(text)["n"]}))


def cpu_s(service: Service) -> dict[int, float]:
    """CPU seconds of each process that is gpucoord's, with those of its ended children."""
    found = {}
    for pid in service.family():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found[pid] = sum(map(int, fields[11:15])) / TICKS_PER_S
    return found


def pss_mb(pid: int) -> float:
    match = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
    return int(match[1]) / 1024 if match else 0.0


def name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


if __name__ == "__main__":
    main()
