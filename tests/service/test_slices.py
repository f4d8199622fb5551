from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone
from django_q.models import OrmQ
from msgspec.structs import replace

from gpucoord_site.service import children, slices, task_queue
from gpucoord_site.service.slices import Loop, TickStats, one_line, quantile
from monitor.models import Event, Lease
from monitor.runtime.policy import Guard
from monitor.runtime.probes import datagrams
from monitor.runtime.probes.process_identity import boot_id, me
from monitor.runtime.rows import leases
from monitor.runtime.rows.wakeups import socket_folder

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SHORT = Loop(name="sampler", every_s=0.05, build=f"{__name__}:build", slice_s=0.2, extension_s=0.1)
LOOPS = [SHORT]
WOKEN = [
    replace(SHORT, every_s=60, wake="sampler", rest_s=0.1, slice_s=1.5, extension_s=0),
]
script: dict[str, Any] = {}


class Scripted:
    """A step that does what the test put into `script`."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard

    def open(self) -> None:
        script["opened"] = script.get("opened", 0) + 1

    def step(self, now: datetime) -> None:
        script["steps"] = script.get("steps", 0) + 1
        if do := script.get("do"):
            do(self.guard)

    def close(self) -> None:
        script["closed"] = script.get("closed", 0) + 1


def build(guard: Guard) -> Scripted:
    return Scripted(guard)


class Clock:
    """Waiting lets it go on; so each slice has all its ticks, however busy the machine."""

    def __init__(self) -> None:
        self.now = time.time()

    def time(self) -> float:
        return self.now

    monotonic = time

    def wait(self, seconds: float, *_others: object) -> bool:
        self.now += max(0.0, seconds) + 1e-6
        return False


@pytest.fixture
def run(
    settings: Any, data: Path, db: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., str]]:
    """Run a slice whose step does `do`; returns how it ended."""
    # The test's own transaction is open on that connection.
    monkeypatch.setattr("gpucoord_site.service.slices.close_old_connections", lambda: None)
    clock = Clock()
    monkeypatch.setattr("gpucoord_site.service.slices.time", clock)
    monkeypatch.setattr(children.Lifeline, "wait", staticmethod(clock.wait))
    settings.LOOPS = f"{__name__}:LOOPS"
    script.clear()

    def run_slice(do: Callable[[Guard], None] | None = None, after: int | None = None) -> str:
        script["do"] = do
        return slices.run_slice("sampler", after)

    yield run_slice
    script.clear()


def test_a_slice_ticks_and_queues_its_successor(run: Callable[..., str]) -> None:
    assert run() == "no successor came"

    assert script["steps"] >= 4
    assert (script["opened"], script["closed"]) == (1, 1)
    queued = OrmQ.objects.get()
    assert queued.func() == slices.SLICE
    assert (queued.args(), queued.kwargs()) == (("sampler",), {"after": 1})
    # It should be free for others now.
    assert leases.acquire(SHORT.lease(), me(), timezone.now())


def test_wake_ups_tick_at_once_but_not_without_a_rest(
    settings: Any, data: Path, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpucoord_site.service.slices.close_old_connections", lambda: None)
    settings.LOOPS = f"{__name__}:WOKEN"
    script.clear()
    script["do"] = lambda _guard: datagrams.send(socket_folder(), "sampler")

    slices.run_slice("sampler")

    # One by the clock, at once; then in 1.5 s at most one each 0.1 s.
    assert 3 <= script["steps"] <= 16


def test_a_lease_that_another_holds_is_left_alone(run: Callable[..., str]) -> None:
    leases.acquire(SHORT.lease(), me(), timezone.now())

    assert run() == "another process holds the lease"

    assert "steps" not in script
    assert not OrmQ.objects.exists()


def test_a_fault_is_logged_once_and_the_next_tick_follows(
    run: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_guard: Guard) -> None:
        raise ValueError(f"tick {script['steps']}")

    run(fail)

    assert script["steps"] >= 4
    assert [r.getMessage() for r in caplog.records] == ["sampler: ValueError: tick 1"]
    assert Event.objects.get().kind == "LOOP_FAILED"
    row = Lease.objects.get()
    assert row.failing_since_at is not None
    assert row.last_error.startswith("ValueError: tick ")
    # The next slice should not report it again.
    caplog.clear()
    run(fail)
    assert not caplog.records
    assert Event.objects.count() == 1


def test_a_fault_that_is_over_is_logged_too(
    run: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def fail_first(_guard: Guard) -> None:
        if script["steps"] == 1:
            raise ValueError

    run(fail_first)

    assert caplog.records[-1].getMessage() == "sampler: works again"
    assert Lease.objects.get().failing_since_at is None
    assert Lease.objects.get().last_error == "ValueError"


def test_a_step_that_cannot_be_built_is_a_fault_like_others(
    run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.build", None)

    run()

    assert "TypeError" in Lease.objects.get().last_error


def test_losing_the_lease_ends_the_slice_quietly(
    run: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    def lose(guard: Guard) -> None:
        leases.drop_host(SHORT.lease().host, timezone.now())
        with guard():
            Event.objects.create(at=NOW, kind="TICK", text="never kept")

    assert run(lose) == "lost the lease"

    assert script["steps"] == script["closed"] == 1
    assert not Event.objects.exists()
    assert not caplog.records
    assert not OrmQ.objects.exists()


def test_a_step_that_swallows_the_loss_is_stopped_all_the_same(run: Callable[..., str]) -> None:
    def swallow(guard: Guard) -> None:
        leases.drop_host(SHORT.lease().host, timezone.now())
        try:
            with guard():
                pass
        except Exception:
            return

    assert run(swallow) == "lost the lease"
    assert script["steps"] == 1


def test_the_queue_s_time_limit_frees_the_lease(run: Callable[..., str]) -> None:
    def exceed(_guard: Guard) -> None:
        raise SystemExit("too long")

    with pytest.raises(SystemExit):
        run(exceed)

    assert Lease.objects.get().pid is None
    assert script["closed"] == 1


def test_each_tick_is_written_with_the_lease(run: Callable[..., str]) -> None:
    def write(guard: Guard) -> None:
        with guard():
            pass

    run(write)

    row = Lease.objects.get()
    assert row.ticks == script["steps"]
    assert row.last_tick_at is not None
    assert 0 <= (row.lateness_p50_ms or 0) <= (row.lateness_p99_ms or 0)


def test_a_cut_lifeline_stops_it_without_a_successor(
    run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    monkeypatch.setenv(children.VARIABLE, str(reader))

    def cut(_guard: Guard) -> None:
        if script["steps"] == 2:
            os.close(writer)

    assert run(cut) == "stopped"

    os.close(reader)
    assert script["steps"] == 2
    assert not OrmQ.objects.exists()
    assert Lease.objects.get().pid is None


def test_a_slice_that_is_queued_too_late_does_not_begin(
    run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(writer)
    monkeypatch.setenv(children.VARIABLE, str(reader))

    assert run() == "another process holds the lease"

    os.close(reader)
    assert "steps" not in script


def test_lateness_is_stored_in_milliseconds() -> None:
    report = TickStats(Lease(expires_at=NOW))
    for lateness_s in (0.001, 0.002, 0.5, None):
        report.begin(NOW, lateness_s)

    assert report.fields() == {
        "last_tick_at": NOW,
        "ticks": 4,
        "lateness_p50_ms": 2.0,
        "lateness_p99_ms": 500.0,
    }


def test_the_first_tick_after_another_s_continues_its_count() -> None:
    report = TickStats(Lease(expires_at=NOW, ticks=41))

    report.begin(NOW + timedelta(seconds=1), None)

    assert report.fields()["ticks"] == 42


def test_an_error_is_one_line_without_passwords() -> None:
    assert one_line(ValueError("two\n  lines")) == "ValueError: two lines"
    assert one_line(ValueError()) == "ValueError"
    assert "hunter2" not in one_line(OSError("postgresql://gpus:hunter2@db/x is away"))


def test_quantiles_of_few_values() -> None:
    assert quantile([5], 0.99) == 5
    assert quantile([3, 1, 2], 0.5) == 2


@pytest.mark.django_db(transaction=True)
def test_a_slice_that_cannot_begin_gives_its_lease_up(monkeypatch: pytest.MonkeyPatch) -> None:
    release, fails = leases.release, [True, True]

    def broken(_held: leases.HeldLease) -> Lease:
        raise OperationalError("database is locked")

    def locked_twice(held: leases.HeldLease, now: datetime) -> bool:
        if fails:
            fails.pop()
            raise OperationalError("database is locked")
        return release(held, now)

    monkeypatch.setattr(leases, "row", broken)
    monkeypatch.setattr(leases, "release", locked_twice)

    with pytest.raises(OperationalError):
        slices.run_slice("controller")
    assert Lease.objects.get(loop="controller").pid is None


@pytest.mark.django_db
def test_a_number_that_another_process_has_by_now_is_not_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The holder of the lease ended between the check and the signal."""
    with subprocess.Popen(["sleep", "60"]) as other:
        late = timezone.now() - timedelta(seconds=60)
        Lease.objects.create(
            name="sampler:box", loop="sampler", host="box", pid=other.pid, start_ticks=1,
            boot_id=boot_id(), expires_at=late,
        )  # fmt: skip
        row, dog = Lease.objects.get(), task_queue.Watchdog()
        monkeypatch.setattr(task_queue, "is_alive", lambda *_: True)
        now = timezone.now()
        dog._is_in_hands(row, now, 0.0)
        dog._is_in_hands(row, now, task_queue.SILENT_S + 1)
        try:
            assert other.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                other.wait(0.3)
        finally:
            other.kill()
