from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import DatabaseError

from monitor.facts.readings import Snapshot
from monitor.gpus.rows.snapshot import Bookings
from monitor.pages import frames
from monitor.pages.frames import Region
from monitor.pages.hub import UNREADABLE, UNRENDERED, WINDOW, Hub, LiveFeed, Seqs
from monitor.runtime.probes import datagrams
from tests.builders import NOW, gpu, gpu_uuid, process, snapshot
from tests.pace import Stopwatch

DASHBOARD = "dashboard"


class Server:
    """Stands for the content of the database."""

    def __init__(self) -> None:
        self.newest = snapshot(1)
        self.reads = 0
        self.broken = False

    def read(self) -> list[Snapshot]:
        self.reads += 1
        if self.broken:
            raise DatabaseError("disk I/O error")
        return [self.newest]

    def seqs(self) -> Seqs:
        return [("gpubox", self.newest.seq)]

    def take(self, **changes: Any) -> None:
        self.newest = snapshot(**{"gpus": 1, "seq": self.newest.seq + 1} | changes)


class Socket:
    """A browser's end; `open` it is slow."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.ready = asyncio.Event()
        self.ready.set()

    async def send(self, event: dict[str, Any]) -> None:
        await self.ready.wait()
        self.got.append(json.loads(event["text"]))


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def hub(server: Server, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub whose ticks the test makes itself."""
    monkeypatch.setattr(frames, "_registered", {})
    hub = Hub(server.read, server.seqs, Bookings)
    monkeypatch.setattr(hub, "start", lambda: None)
    return hub


class _Spark:
    line = area = ""


SPARK = _Spark()
Connect = Callable[[Socket], LiveFeed]


@pytest.fixture
async def connect(hub: Hub) -> AsyncIterator[Connect]:
    tasks = []

    def connect(socket: Socket) -> LiveFeed:
        feed = LiveFeed(hub, DASHBOARD, socket.send)
        tasks.append(asyncio.create_task(feed.run()))
        return feed

    yield connect
    for task in tasks:
        task.cancel()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def tick(hub: Hub, server: Server, **changes: Any) -> None:
    server.take(**changes)
    hub.tick(NOW)
    await settle()


async def test_it_renders_once_for_all_viewers(hub: Hub, server: Server, connect: Connect) -> None:
    sockets = [Socket() for _ in range(50)]
    for socket in sockets:
        connect(socket)
    for _ in range(3):
        await tick(hub, server)

    assert server.reads == 3
    assert {len(socket.got) for socket in sockets} == {3}


async def test_a_slow_viewer_gets_the_newest_and_never_a_queue(
    hub: Hub, server: Server, connect: Connect
) -> None:
    slow, quick = Socket(), Socket()
    connect(quick).hear('{"ack": 100}')
    connect(slow)
    await tick(hub, server)
    slow.ready.clear()
    for number in range(5):
        await tick(hub, server, gpus=[gpu(utilization_pct=float(number))])
    await tick(hub, server, gpus=[gpu(utilization_pct=77.0)], processes=[process()])
    slow.ready.set()
    await settle()

    assert len(quick.got) == 7
    # The one that was being sent, and then at once the newest.
    assert len(slow.got) == 3
    assert slow.got[-1]["g"][0][0] == 77
    assert slow.got[-1]["since"] == slow.got[-2]["n"]
    assert gpu_uuid() in slow.got[-1]["content"]


async def test_a_viewer_that_acknowledges_nothing_gets_few_frames(
    hub: Hub, server: Server, connect: Connect
) -> None:
    socket = Socket()
    feed = connect(socket)
    for _ in range(WINDOW + 10):
        await tick(hub, server)
    assert len(socket.got) == WINDOW

    feed.hear(json.dumps({"ack": socket.got[-1]["n"]}))
    await settle()

    assert hub.frame is not None
    assert socket.got[-1]["n"] == hub.frame.n


async def test_a_viewer_that_lost_track_gets_everything(
    hub: Hub, server: Server, connect: Connect
) -> None:
    socket = Socket()
    feed = connect(socket)
    await tick(hub, server)
    await tick(hub, server)
    assert "content" not in socket.got[-1]

    feed.hear('{"whole": true}')
    await settle()

    assert socket.got[-1]["since"] == 0
    assert gpu_uuid() in socket.got[-1]["content"]


async def test_a_failing_database_is_reported_once_and_the_figures_stay(
    hub: Hub, server: Server, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    socket = Socket()
    connect(socket)
    await tick(hub, server)
    server.broken = True
    await tick(hub, server)
    await tick(hub, server)
    assert [("problem" in said) for said in socket.got] == [False, True]
    assert len(caplog.records) == 1

    server.broken = False
    await tick(hub, server)

    assert "problem" not in socket.got[-1]
    assert len(socket.got) == 3


async def test_it_does_not_render_what_it_has_seen(
    hub: Hub, server: Server, connect: Connect
) -> None:
    connect(Socket())
    await tick(hub, server)
    hub.tick(NOW)
    hub.tick(NOW)

    assert server.reads == 1


@pytest.mark.parametrize(
    ("error", "problem"),
    [(DatabaseError("disk I/O error"), UNREADABLE), (KeyError("no such card"), UNRENDERED)],
)
async def test_a_fault_before_the_first_frame_is_logged_once_and_shown(
    hub: Hub,
    server: Server,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    problem: str,
) -> None:
    def fail() -> list[Snapshot]:
        raise error

    monkeypatch.setattr(hub, "_read", fail)
    early, late = Socket(), Socket()
    connect(early)
    for _ in range(3):
        await tick(hub, server)
    connect(late)
    await settle()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert early.got == late.got == [{"n": 0, "since": 0, "problem": problem}]

    monkeypatch.setattr(hub, "_read", server.read)
    await tick(hub, server)

    assert early.got[-1]["since"] == late.got[-1]["since"] == 0
    assert gpu_uuid() in early.got[-1]["content"]
    assert "problem" not in late.got[-1]


async def test_a_template_fault_is_not_reported_as_a_database_fault(
    hub: Hub, server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = Socket()
    connect(socket)
    await tick(hub, server)

    def fail(*_: object) -> None:
        raise KeyError("no such card")

    monkeypatch.setattr(hub._renderer, "frame", fail)
    await tick(hub, server)

    assert socket.got[-1]["problem"] == UNRENDERED


async def test_the_complete_state_is_sent_once_a_second_at_most(
    hub: Hub, server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.pages.hub.WHOLE_EVERY_S", 0.3)
    socket = Socket()
    feed = connect(socket)
    await tick(hub, server)
    started = monotonic()
    for _ in range(20):
        feed.hear('{"whole": true}')
        await settle()
    assert len(socket.got) == 2 or monotonic() - started > 0.3

    await asyncio.sleep(0.4)

    assert len(socket.got) == 3
    assert [said["since"] for said in socket.got] == [0, 0, 0]


class Mood:
    """A region that a test changes at will."""

    def __init__(self) -> None:
        self.word = "calm"
        self.loads = 0

    def load(self, now: datetime) -> dict[str, Any]:
        self.loads += 1
        return {"events": [SimpleNamespace(at=NOW, text=self.word)]}


@pytest.fixture
def mood(hub: Hub) -> Mood:
    mood = Mood()
    frames.register(Region("mood", "monitor/_events.html", mood.load))
    return mood


async def test_regions_of_a_reading_are_sent_with_the_next_one(
    hub: Hub, server: Server, mood: Mood, connect: Connect
) -> None:
    socket = Socket()
    connect(socket)
    await tick(hub, server)
    mood.word = "angry"
    server.take(gpus=[gpu(utilization_pct=77.0)])
    hub.show_readings(NOW)
    await settle()
    loads = mood.loads
    hub.tick(NOW, is_read=True)
    await settle()
    sent = len(socket.got)
    server.take(gpus=[gpu(utilization_pct=78.0)])
    hub.show_readings(NOW)
    await settle()

    assert (loads, sent) == (1, 2)
    assert socket.got[1]["g"][0][0] == 77
    assert "content" not in socket.got[1]
    assert socket.got[2]["g"][0][0] == 78
    assert 'id="region-mood"' in socket.got[2]["content"]


async def test_regions_of_a_reading_are_sent_alone_when_no_other_reading_comes(
    hub: Hub, server: Server, mood: Mood, connect: Connect
) -> None:
    socket = Socket()
    connect(socket)
    await tick(hub, server)
    mood.word = "angry"
    hub.show_readings(NOW)
    hub.tick(NOW, is_read=True)
    hub.tick(NOW)
    await settle()

    assert 'id="region-mood"' in socket.got[-1]["content"]
    assert server.reads == 2


async def test_nothing_is_sent_when_all_around_a_reading_is_as_it_was(
    hub: Hub, server: Server, mood: Mood, connect: Connect
) -> None:
    socket = Socket()
    connect(socket)
    await tick(hub, server)
    hub.show_readings(NOW)
    hub.tick(NOW, is_read=True)
    hub.tick(NOW)
    await settle()

    assert len(socket.got) == 2


async def test_who_comes_to_another_page_after_a_reading_is_served_at_once(
    hub: Hub, server: Server, connect: Connect
) -> None:
    connect(Socket())
    await tick(hub, server)
    hub.show_readings(NOW)
    hub.join("processes")
    hub.tick(NOW, is_read=True)

    assert hub.frame is not None
    assert set(hub.frame.boards) == {DASHBOARD, "processes"}


async def test_a_topic_without_viewers_costs_nothing(
    hub: Hub, server: Server, connect: Connect
) -> None:
    await tick(hub, server)

    assert hub.frame is not None
    assert set(hub.frame.boards) == {DASHBOARD}


async def test_pages_without_figures_read_no_snapshot(hub: Hub, server: Server) -> None:
    hub.join("head")
    await tick(hub, server)

    assert hub.frame is not None
    assert set(hub.frame.boards) == {"head"}
    assert server.reads == 0


async def wait_until(condition: Callable[[], bool]) -> None:
    watch = Stopwatch()
    while not condition():
        assert not watch.has_run(3), "it did not come within 3 s"
        await asyncio.sleep(0.005)


@pytest.fixture
def live_hub(server: Server, data: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub with its own thread."""
    monkeypatch.setattr(frames, "_registered", {})
    monkeypatch.setattr("monitor.pages.hub.close_old_connections", lambda: None)
    return Hub(server.read, server.seqs, Bookings)


async def test_a_wake_up_brings_a_frame_at_once(
    live_hub: Hub, server: Server, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.pages.hub.POLL_S", 60.0)
    viewer = live_hub.join(DASHBOARD)
    await wait_until(lambda: list((data / "run").glob("live.*.sock")) != [])
    await wait_until(lambda: live_hub.frame is not None)
    server.take(gpus=3)
    sent = datagrams.send(data / "run", "live", b"2")

    await wait_until(lambda: len(live_hub.frame.boards[DASHBOARD].columns["g"].order) == 3)  # type: ignore[union-attr]
    assert sent == 1
    live_hub.leave(viewer)


async def test_what_is_around_a_reading_follows_it_by_itself(
    live_hub: Hub, server: Server, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.pages.hub.POLL_S", 60.0)
    mood = Mood()
    frames.register(Region("mood", "monitor/_events.html", mood.load))
    viewer = live_hub.join(DASHBOARD)
    await wait_until(lambda: list((data / "run").glob("live.*.sock")) != [])
    await wait_until(lambda: mood.loads > 0)
    before, mood.word = mood.loads, "angry"
    server.take()
    datagrams.send(data / "run", "live", b"2")

    await wait_until(lambda: mood.loads > before)
    live_hub.leave(viewer)


async def test_changes_right_after_a_change_are_shown_with_the_next_reading(
    live_hub: Hub, server: Server, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.pages.hub.POLL_S", 60.0)
    monkeypatch.setattr("monitor.pages.hub.BURST_S", 0.2)
    mood = Mood()
    frames.register(Region("mood", "monitor/_events.html", mood.load))
    viewer = live_hub.join(DASHBOARD)
    await wait_until(lambda: list((data / "run").glob("live.*.sock")) != [])
    await wait_until(lambda: live_hub.frame is not None)

    async def change(word: str) -> int:
        """The number of the frame before the change, once the regions are loaded."""
        loads, frame, mood.word = mood.loads, live_hub.frame, word
        datagrams.send(data / "run", "live", b"")
        await wait_until(lambda: mood.loads > loads)
        await asyncio.sleep(0.05)
        return frame.n if frame else 0

    first = await change("angry")
    assert live_hub.frame is not None
    assert live_hub.frame.n > first
    second = await change("calm")
    assert live_hub.frame.n == second
    server.take()
    datagrams.send(data / "run", "live", b"2")
    await wait_until(lambda: live_hub.frame is not None and live_hub.frame.n > second)
    live_hub.leave(viewer)


async def test_a_lost_wake_up_costs_a_poll(
    live_hub: Hub, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.pages.hub.POLL_S", 0.05)
    viewer = live_hub.join(DASHBOARD)
    await wait_until(lambda: live_hub.frame is not None)
    server.take(gpus=3)

    await wait_until(lambda: len(live_hub.frame.boards[DASHBOARD].columns["g"].order) == 3)  # type: ignore[union-attr]
    live_hub.leave(viewer)


async def test_it_reads_nothing_without_viewers(
    live_hub: Hub, server: Server, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.pages.hub.POLL_S", 0.02)

    def listens() -> bool:
        return any((data / "run").glob("live.*.sock"))

    viewer = live_hub.join(DASHBOARD)
    await wait_until(listens)
    live_hub.leave(viewer)
    await wait_until(lambda: not listens())
    before = server.reads
    for _ in range(5):
        server.take()
        await asyncio.sleep(0.03)

    assert server.reads == before

    viewer = live_hub.join(DASHBOARD)
    await wait_until(lambda: server.reads > before)
    live_hub.leave(viewer)
