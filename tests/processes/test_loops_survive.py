"""Kills each part of the running service with SIGKILL, and measures how long ticks stay away.

GPUCOORD_KILL_TRIALS says how often (default 1); each hole is logged (`--log-cli-level=INFO`).
"""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes.service import WORKERS, Service, wait_until
from tests.processes.tick_watch import TickWatch, no_superseded_tick

pytestmark = pytest.mark.processes
logger = logging.getLogger(__name__)
TRIALS = int(os.environ.get("GPUCOORD_KILL_TRIALS", "1"))
LONGEST_HOLE_S = 5.0
# Slices of 8 s: whatever stops hand-overs shows within the time watched.
SLICE_S = "8"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    fake = "tests.processes.fake_settings"
    with Service(tmp_path / "data", fake, FAKE_SLICE_S=SLICE_S) as running:
        yield running


def holders(service: Service) -> dict[str, int]:
    """The pids that hold leases now, by loop."""
    with sqlite3.connect(f"file:{service.database}?mode=ro", uri=True, timeout=60) as reader:
        query = "SELECT loop, pid FROM monitor_lease WHERE pid NOTNULL"
        return dict(reader.execute(query).fetchall())


def sampler(service: Service) -> list[int]:
    return [holders(service)["sampler"]]


def idle_worker_with_the_queue(service: Service) -> list[int]:
    """The idle worker that reads the queue's pipe: it holds the lock that all others wait for."""
    idle = [pid for pid in service.members()[:WORKERS] if pid not in holders(service).values()]
    reading = [pid for pid in idle if "pipe" in Path(f"/proc/{pid}/wchan").read_text()]
    return reading[:1] or idle


def idle_workers(service: Service) -> list[int]:
    return [pid for pid in service.members()[:WORKERS] if pid not in holders(service).values()]


def monitor(service: Service) -> list[int]:
    return [service.members()[WORKERS]]


def pusher(service: Service) -> list[int]:
    return [service.members()[WORKERS + 1]]


def parent(service: Service) -> list[int]:
    return [service.child("tasks")]


def whole_group(service: Service) -> list[int]:
    return [service.child("tasks"), *service.members()]


def web(service: Service) -> list[int]:
    return [service.child("web")]


VICTIMS: list[tuple[Callable[[Service], list[int]], float]] = [
    (sampler, 8),
    (idle_worker_with_the_queue, 24),
    (idle_workers, 24),
    (monitor, 24),
    (pusher, 12),
    (parent, 8),
    (whole_group, 8),
    (web, 8),
]


def kinds() -> list[object]:
    """Those that need less time in each run; the others are `long`."""
    return [
        pytest.param(
            victims,
            seconds,
            id=victims.__name__,
            marks=[] if victims in (sampler, monitor, whole_group, web) else pytest.mark.long,
        )
        for victims, seconds in VICTIMS
    ]


@pytest.mark.parametrize("trial", range(TRIALS))
@pytest.mark.parametrize(("victims", "seconds"), kinds())
def test_ticks_come_back_after_a_kill(
    service: Service,
    victims: Callable[[Service], list[int]],
    seconds: float,
    trial: int,
    record_property: Callable[[str, object], None],
) -> None:
    with TickWatch(service.database) as watch:
        wait_until(lambda: len(holders(service)) == 3, 10, "all loops run")
        time.sleep(2 + 0.37 * trial)
        killed_t = time.time()
        for pid in victims(service):
            os.kill(pid, signal.SIGKILL)
        time.sleep(seconds)

    holes = {
        loop: watch.longest_hole(loop, killed_t - 1, killed_t + seconds)
        for loop in ("sampler", "scheduler")
    }
    record_property("longest holes (s)", holes)
    logger.info("KILL %s trial %s: %s", victims.__name__, trial, holes)
    assert max(holes.values()) <= LONGEST_HOLE_S
    assert no_superseded_tick(service.database)
    # It should also answer again, and stop as fast as ever.
    assert service.healthz().status_code == 200
    code, took_s = service.stop()
    assert code == 0
    assert took_s <= 3
