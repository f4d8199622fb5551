"""A call of the driver that never comes back, and one sweep that is only slow: real processes."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pace import Stopwatch
from tests.processes.service import Service, lives, wait_until
from tests.processes.tick_watch import TickWatch, no_superseded_tick

pytestmark = pytest.mark.processes
logger = logging.getLogger(__name__)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "data", "tests.processes.fake_settings") as running:
        yield running


def ask(service: Service, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(f"file:{service.database}?mode=ro", uri=True, timeout=60) as reader:
        return reader.execute(query).fetchall()


def holder(service: Service) -> int:
    query = "SELECT pid FROM monitor_lease WHERE loop = 'sampler' AND pid NOTNULL"
    return wait_until(lambda: [int(str(p)) for (p,) in ask(service, query)], 10, "a sampler")[0]


def hangs(service: Service) -> list[str]:
    rows = ask(service, "SELECT text FROM monitor_event WHERE kind = 'NVML_HUNG'")
    return [str(text) for (text,) in rows]


def test_a_hung_call_is_noticed_and_a_fresh_process_goes_on(service: Service) -> None:
    with TickWatch(service.database) as watch:
        old = holder(service)
        wait_until(lambda: watch.ticks, 10, "a tick")
        begun, noticed = time.time(), Stopwatch()
        marker = service.data / "hang-in-a-call-sampler"
        marker.touch()
        wait_until(lambda: hangs(service), 12, "the hang is told")
        noticed_s = noticed.seconds
        marker.unlink()
        wait_until(lambda: holder(service) != old and not lives(old), 5, "a fresh process")
        time.sleep(4)
        ended = time.time()
    hole = watch.longest_hole("sampler", begun - 1, ended)
    logger.info("HUNG CALL noticed after %.1f s, hole %.1f s", noticed_s, hole)
    assert noticed_s <= 10
    assert hole <= 12
    assert "nvmlDeviceGetUtilizationRates" in hangs(service)[0]
    assert no_superseded_tick(service.database)
    # The others went on meanwhile.
    assert watch.longest_hole("scheduler", begun - 1, ended) <= 3


def test_a_sweep_that_is_slow_but_lives_is_left_alone(service: Service) -> None:
    with TickWatch(service.database) as watch:
        old = holder(service)
        wait_until(lambda: watch.ticks, 10, "a tick")
        marker = service.data / "be-slow-sampler"
        marker.touch()
        wait_until(marker.with_name(f"{marker.name}.heard").exists, 10, "a slow sweep")
        marker.unlink()
        time.sleep(19)
    assert holder(service) == old
    assert hangs(service) == []
    assert lives(old)
