"""The endpoint for language models: added time to the first byte, CPU of streams, a slow reader.

    python -m tests.bench.bench_endpoint
    python -m tests.bench.bench_endpoint live

The test server, the clients and the endpoint share the machine. Direct and proxied requests take
turns, so that both see the same load. `live` measures the live view of a whole service while
streams run, and without them, in turns.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median, quantiles
from subprocess import Popen
from tempfile import TemporaryDirectory

import httpx

from tests.bench.bench_live import running, watch
from tests.processes.model_stand import SERVER, ModelStand, model_stand
from tests.processes.service import Service, token, wait_until

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
PAIRS, STREAMS, CHUNKS_PER_S, SECONDS = 200, 50, 40, 10
# Of the live view.
ROUNDS, VIEWERS, WATCHED_S = 3, 20, 20


async def first_byte_s(client: httpx.AsyncClient, url: str, headers: dict[str, str]) -> float:
    began = time.perf_counter()
    async with client.stream(
        "POST", f"{url}/chat/completions", headers=headers, json=HELLO
    ) as answer:
        pieces = answer.aiter_raw()
        await anext(pieces)
        took = time.perf_counter() - began
        async for _ in pieces:
            pass
    return took


async def added_latency(stand: ModelStand, direct: str) -> None:
    assert stand.endpoint is not None
    before = cpu_s(stand.endpoint.pid)
    async with httpx.AsyncClient(timeout=60) as client:
        pairs = []
        for _ in range(PAIRS):
            plain = await first_byte_s(client, direct, {})
            pairs.append((plain, await first_byte_s(client, stand.url, stand.headers)))
    plain_ms, proxied_ms = (1000 * median(pair[at] for pair in pairs) for at in (0, 1))
    added_ms = 1000 * median(proxied - plain for plain, proxied in pairs)
    print(f"first byte, p50: direct {plain_ms:.1f} ms, endpoint {proxied_ms:.1f} ms")
    print(f"added, p50 of {PAIRS} pairs: {added_ms:.1f} ms (wanted: at most 3)")
    # Time that the machine spends on others does not count here.
    used_ms = 1000 * (cpu_s(stand.endpoint.pid) - before) / PAIRS
    print(f"CPU time of the endpoint: {used_ms:.1f} ms a request")


async def many_streams(stand: ModelStand) -> None:
    assert stand.endpoint is not None
    pid = stand.endpoint.pid
    body = HELLO | {"tokens": CHUNKS_PER_S * SECONDS, "interval_s": 1 / CHUNKS_PER_S}

    async def read(client: httpx.AsyncClient) -> int:
        count = 0
        async with client.stream(
            "POST", f"{stand.url}/chat/completions", headers=stand.headers, json=body
        ) as answer:
            async for piece in answer.aiter_raw():
                count += piece.count(b"data:")
        return count

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        before = cpu_s(pid)
        counts = await asyncio.gather(*(read(client) for _ in range(STREAMS)))
    used_ms = 1000 * (cpu_s(pid) - before)
    each = used_ms / sum(counts)
    print(f"{STREAMS} streams, {sum(counts)} chunks: {each:.2f} ms CPU a chunk (wanted: 0.2)")


def slow_reader(stand: ModelStand) -> None:
    assert stand.endpoint is not None
    before = rss_mib(stand.endpoint.pid)
    body = HELLO | {"tokens": 20_000, "interval_s": 0, "word_bytes": 10_000}
    with httpx.stream(
        "POST", f"{stand.url}/chat/completions", headers=stand.headers, json=body, timeout=60
    ) as stream:
        # The request would end with an iterator that no variable holds.
        pieces = stream.iter_raw(1024)
        next(pieces)
        time.sleep(5)
        grown = rss_mib(stand.endpoint.pid) - before
    print(f"a client that does not read 200 MB: +{grown:.0f} MiB (wanted: below 20)")


def live_view() -> None:
    """Sample -> viewer, p99: with STREAMS streams and without, ROUNDS times in turns."""
    with running(8) as service:
        url, headers = add_model(service)
        delays: dict[bool, list[float]] = {False: [], True: []}
        used: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(ROUNDS):
            for has_streams in (False, True):
                with streams(url, headers) if has_streams else nullcontext():
                    viewers, used_pct = asyncio.run(watch(service, VIEWERS, WATCHED_S))
                delays[has_streams] += [delay for viewer in viewers for delay in viewer.delays]
                used[has_streams].append(used_pct)
        remove_model(service, headers)
    plain, beside = (quantiles(delays[key], n=100, method="inclusive") for key in (False, True))
    for name, cuts, key in (("without", plain, False), ("with", beside, True)):
        print(f"live view {name} {STREAMS} streams: p50 {1000 * cuts[49]:.1f} ms,"
              f" p99 {1000 * cuts[98]:.1f} ms, web {median(used[key]):.1f} % CPU")  # fmt: skip
    print(f"p99 with / without: {beside[98] / plain[98]:.2f} (wanted: at most 1.2)")


def add_model(service: Service) -> tuple[str, dict[str, str]]:
    """A service with a ready instance; the address of the endpoint and the headers for it."""
    headers = {"Authorization": f"Bearer {token(service)}"}
    command = [sys.executable, str(SERVER), "--port", "{port}"]
    fields = {"name": "m", "command": command, "gpus": 0, "concurrency": 100, "min_instances": 1,
              "account": pwd.getpwuid(os.geteuid()).pw_name}  # fmt: skip
    with httpx.Client(base_url=f"{service.address}api/", headers=headers, timeout=60) as client:
        client.post("models/", json=fields).raise_for_status()
        url: str = wait_until(lambda: client.get("models/").json()["base_url"], 30, "an endpoint")
        wait_until(lambda: client.get("models/m/").json()["state"] == "ready", 30, "readiness")
    return url, headers


def remove_model(service: Service, headers: dict[str, str]) -> None:
    httpx.delete(f"{service.address}api/models/m/", headers=headers).raise_for_status()
    time.sleep(3)


@contextmanager
def streams(url: str, headers: dict[str, str]) -> Iterator[None]:
    """STREAMS streams, read by a process of its own, until the context ends."""
    with Popen([sys.executable, "-m", "tests.bench.bench_endpoint", "read", url,
                headers["Authorization"]]) as process:  # fmt: skip
        time.sleep(3)
        yield
        process.terminate()


async def read_streams(url: str, authorization: str) -> None:
    body = HELLO | {"tokens": 100_000, "interval_s": 1 / CHUNKS_PER_S}

    async def read(client: httpx.AsyncClient) -> None:
        headers = {"Authorization": authorization}
        async with client.stream(
            "POST", f"{url}/chat/completions", headers=headers, json=body
        ) as answer:
            async for _ in answer.aiter_raw():
                pass

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        await asyncio.gather(*(read(client) for _ in range(STREAMS)))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def main() -> None:
    if sys.argv[1:2] == ["live"]:
        live_view()
        return
    if sys.argv[1:2] == ["read"]:
        asyncio.run(read_streams(*sys.argv[2:]))
        return
    with TemporaryDirectory() as folder, model_stand(Path(folder) / "data") as stand:
        stand.sql("UPDATE scheduler_modelservice SET concurrency = 100")
        port = stand.serve("--tokens", "3")
        stand.start_endpoint()
        asyncio.run(added_latency(stand, f"http://127.0.0.1:{port}/v1"))
        slow_reader(stand)
        asyncio.run(many_streams(stand))


if __name__ == "__main__":
    main()
