"""The loops in real processes: one holder, quick wake-ups, hand-overs without a hole, faults."""

from __future__ import annotations

import logging
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monitor.runtime.probes import datagrams
from tests.pace import LONGEST_S, PaceLog
from tests.processes.service import ROOT, Service, wait_until
from tests.processes.tick_watch import TickWatch, committed_ticks, no_superseded_tick

pytestmark = pytest.mark.processes
FAKE = "tests.processes.fake_settings"
logger = logging.getLogger(__name__)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "data", FAKE) as running:
        wait_until(lambda: running.healthz().json()["status"] == "ok", 10, "all loops tick")
        yield running


def test_the_scheduler_hears_a_wake_up_within_milliseconds(
    service: Service, record_property: Callable[[str, object], None]
) -> None:
    sent, pace = [], PaceLog()
    for _ in range(40):
        pace.look()
        sent.append(time.time())
        assert datagrams.send(service.data / "run", "scheduler") == 1
        time.sleep(random.uniform(0.05, 0.2))
    wait_until(lambda: _ticked_after(service, sent[-1]), 2, "a tick for the last")
    pace.look()

    ticks = [tick["t"] for tick in committed_ticks(service.database, "scheduler")]
    late_ms = sorted(1000 * pace.seconds(at, min(t for t in ticks if t > at)) for at in sent)
    figures = f"p50 {statistics.median(late_ms):.1f} ms, worst {late_ms[-1]:.1f} ms"
    logger.info("wake-up to the scheduler's write: %s", figures)
    record_property("wake-up", figures)
    assert statistics.median(late_ms) < 20
    assert late_ms[-1] < 250


def _ticked_after(service: Service, t: float) -> bool:
    return committed_ticks(service.database, "scheduler")[-1]["t"] > t


def test_a_step_that_fails_is_told_once_and_the_next_one_runs(service: Service) -> None:
    marker = service.data / "fail-sampler"
    marker.touch()
    wait_until(lambda: service.healthz().json()["status"] == "failing", 5, "it is known to fail")
    time.sleep(2)

    assert service.text().count("RuntimeError: asked to fail") == 2  # one line, one traceback
    health = service.healthz().json()
    assert health["status"] == "failing"
    assert health["loops"]["sampler"]["error"].startswith("RuntimeError: asked to fail")
    assert health["loops"]["scheduler"]["error"] is None

    marker.unlink()
    wait_until(lambda: service.healthz().json()["status"] == "ok", 5, "the sampler works again")
    wait_until(lambda: "sampler: works again" in service.text(), 5, "the log says so, too")


def test_a_loop_that_keeps_failing_turns_stale(service: Service) -> None:
    (service.data / "fail-controller").touch()
    (service.data / "fail-sampler").touch()

    response = wait_until(
        lambda: r if (r := service.healthz()).status_code == 503 else None, 20, "a 503"
    )

    assert response.json()["status"] == "stale"


def test_a_loop_that_hangs_is_replaced(service: Service) -> None:
    marker = service.data / "hang-sampler"
    with TickWatch(service.database) as watch:
        marker.touch()
        hung_t = time.time()
        wait_until(marker.with_name(f"{marker.name}.heard").exists, 5, "it hangs")
        marker.unlink()
        wait_until(lambda: "hangs in process" in service.text(), 20, "it is noticed")
        time.sleep(3)
        until = time.time()

    assert watch.longest_hole("sampler", hung_t, until) < 15
    # It should not have disturbed the others.
    assert watch.longest_hole("scheduler", hung_t, until) < 2
    assert no_superseded_tick(service.database)


def epochs(watch: TickWatch) -> set[int]:
    return {tick.epoch for tick in watch.ticks if tick.loop == "sampler"}


def test_slices_hand_over_without_a_hole(tmp_path: Path) -> None:
    with Service(tmp_path / "data", FAKE, FAKE_SLICE_S="1.5") as service:
        wait_until(lambda: service.healthz().json()["status"] == "ok", 10, "all loops tick")
        with TickWatch(service.database) as watch:
            since = time.time()
            wait_until(lambda: len(epochs(watch)) >= 6, 20, "five hand-overs")
            until = time.time()

        assert watch.longest_hole("sampler", since, until) < 1.5
        assert watch.longest_hole("scheduler", since, until) < 1.5
        assert no_superseded_tick(service.database)


def test_stray_slices_change_nothing(service: Service) -> None:
    before = committed_ticks(service.database, "sampler")[-1]
    queue = (
        "import django; django.setup();"
        "from gpucoord_site.service import slices as loops;"
        "[loops.enqueue(name, after) for name in ('sampler', 'scheduler', 'controller')"
        " for after in (None, None, 0, 1)]"
    )
    environment = {
        **os.environ,
        "GPUCOORD_DATA": str(service.data),
        "DJANGO_SETTINGS_MODULE": FAKE,
        "PYTHONPATH": str(ROOT),
    }
    # The holder's own epoch is 1 here; only its own successor may ask for the lease.
    environment["FAKE_SLICE_S"] = "60"
    subprocess.run([sys.executable, "-c", queue], env=environment, check=True, timeout=LONGEST_S)
    time.sleep(7)

    after = committed_ticks(service.database, "sampler")[-1]
    assert after["t"] > before["t"]
    assert (after["epoch"], after["pid"]) == (before["epoch"], before["pid"])
    assert no_superseded_tick(service.database)
