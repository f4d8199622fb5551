"""The three loops: what runs how often, and the slices in which django-q2 runs them.

A slice is one task of about a minute. It holds the loop's lease, ticks on the wall clock's grid,
queues its successor, and goes on until that asks for the lease: a cluster that has silently
stopped taking tasks leaves no hole until it is replaced.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, cast

from django.conf import settings
from django.db import DatabaseError, close_old_connections, connection, transaction
from django.utils import timezone
from django_q.tasks import async_task
from msgspec import Struct

from gpucoord_site.service.children import Lifeline
from gpucoord_site.service.logs import masked
from monitor.gpus.sampling.policy import hang_text
from monitor.gpus.sampling.probes.nvml_calls import patience_s
from monitor.journal.rows import events
from monitor.models import Lease
from monitor.runtime.policy import Guard, Step
from monitor.runtime.probes import datagrams
from monitor.runtime.probes.process_identity import me
from monitor.runtime.rows import database, leases
from monitor.runtime.rows.item_isolation import place_of
from monitor.runtime.rows.leases import HeldLease, LeaseLost, LeaseSpec
from monitor.runtime.rows.wakeups import Listener, wake

SLICE = "gpucoord_site.service.slices.run_slice"
# Longer than a slice with its longest extension, and less than the queue's `retry`.
TASK_TIMEOUT_S = 120


class Loop(Struct, frozen=True, kw_only=True):
    """A step that runs `every_s` seconds, and at once when `wake` is heard, but then `rest_s`
    after the last time at the earliest.

    The slices' lengths differ, so that the loops don't all change hands at the same moment, and
    their phases, so that none of them waits for another's core or database lock at each tick.
    """

    name: str
    every_s: float
    build: str
    phase_s: float = 0.0
    wake: str | None = None
    rest_s: float = 0.0
    slice_s: float = 60.0
    extension_s: float = 30.0

    def lease(self) -> LeaseSpec:
        ttl = timedelta(seconds=max(6.0, 3 * self.every_s))
        return LeaseSpec(self.name, settings.CONFIG.node, self.every_s, ttl)

    def new_step(self, guard: Guard) -> Step:
        module, _, function = self.build.partition(":")
        return cast(Step, getattr(import_module(module), function)(guard))


LOOPS = (
    Loop(
        name="sampler",
        every_s=1,
        build="monitor.gpus.sampling.step:build",
        wake="sampler",
        rest_s=0.05,
        slice_s=60,
    ),
    Loop(
        name="controller",
        every_s=5,
        phase_s=0.3,
        build="scheduler.dispatch.tasks:build_controller",
        slice_s=56,
    ),
    Loop(
        name="scheduler",
        every_s=1,
        phase_s=0.6,
        build="scheduler.dispatch.tasks:build_scheduler",
        wake="scheduler",
        slice_s=52,
    ),
)


def table() -> Mapping[str, Loop]:
    """The loops by name; settings.LOOPS names others, as `module:CONSTANT`."""
    module, _, constant = getattr(settings, "LOOPS", f"{__name__}:LOOPS").partition(":")
    return {loop.name: loop for loop in getattr(import_module(module), constant)}


def preload() -> None:
    """Import the modules of the loops before the cluster forks; its workers share the memory."""
    for loop in table().values():
        # An import that fails does so again in its slice, where it is recorded.
        with suppress(Exception):
            import_module(loop.build.partition(":")[0])


def enqueue(name: str, after: int | None = None) -> None:
    """Queue a slice; `after`: the epoch of the lease holder that waits to hand over."""
    options: dict[str, Any] = {
        "task_name": f"{name} slice",
        "save": False,
        "ack_failure": True,
        "timeout": TASK_TIMEOUT_S,
    }
    async_task(SLICE, name, after=after, q_options=options)


# One slice of a loop: take the lease, tick at fixed times of the clock, hand over.
#
# This is the only module in which the loops read a clock.


# How long a successor waits for the lease, and how long the old holder keeps its devices open
# afterwards: a driver takes seconds to close and open again.
HAND_OVER_S = 5.0
LINGER_S = 1.0
RECENT_S = 60.0
# A database that is locked for a moment must not leave the lease with a process that ends.
RELEASE_TRIES, RELEASE_PAUSE_S = 3, 0.2
HANDED_OVER = "handed over"
# After wake-ups that may wait, the tick waits so long for others.
PATIENCE_S = 0.02
# A loop that rests does so for this many times as long as its tick took.
REST_SHARE = 4
logger = logging.getLogger(__name__)
LATENESS_SAMPLES = 300


def run_slice(name: str, after: int | None = None) -> str:
    """The task that django-q2 runs; returns how it ended.

    `after` is the epoch of the holder that waits to hand over.
    """
    loop, lifeline = table()[name], Lifeline()
    with ExitStack() as stack:
        # Bound before the lease is taken, so that no wake-up is lost between two holders.
        heard = [stack.enter_context(Listener(loop.wake))] if loop.wake else []
        held = _take(loop, after, lifeline)
        if held is None:
            return "another process holds the lease"
        try:
            turn = LeaseTerm(loop, held, lifeline, heard)
            stack.callback(turn.close)
            outcome = turn.tick_until_the_end()
        except LeaseLost:
            return "lost the lease"
        except BaseException:
            # The queue's time limit, or a fault: others need not wait until the lease expires.
            _release(held)
            raise
        if outcome == HANDED_OVER:
            turn.stop_listening()
            lifeline.wait(LINGER_S)
        return outcome


def _release(held: HeldLease) -> None:
    """Release the lease whatever the state of the database; otherwise it expires."""
    for _ in range(RELEASE_TRIES):
        try:
            leases.release(held, timezone.now())
        except DatabaseError:
            close_old_connections()
            time.sleep(RELEASE_PAUSE_S)
        else:
            return


def _take(loop: Loop, after: int | None, lifeline: Lifeline) -> HeldLease | None:
    """Acquire the lease; a successor first asks the old holder for it."""
    spec, deadline = loop.lease(), time.monotonic() + HAND_OVER_S
    if lifeline.is_cut():
        return None
    held = leases.acquire(spec, me(), timezone.now())
    if held or after is None or not leases.is_held(spec, after, timezone.now()):
        return held
    with Listener(f"{loop.name}-free") as freed:
        while held is None and time.monotonic() < deadline and not lifeline.is_cut():
            wake(f"{loop.name}-yield")
            lifeline.wait(0.25, freed)
            freed.drain()
            held = leases.acquire(spec, me(), timezone.now())
    return held


class LeaseTerm:
    """The time that one process holds a loop's lease."""

    def __init__(
        self, loop: Loop, held: HeldLease, lifeline: Lifeline, heard: list[Listener]
    ) -> None:
        self._loop, self._held, self._lifeline, self._heard = loop, held, lifeline, heard
        self._report = TickStats(leases.row(held))
        self._step: Step | None = None
        self._lost = False
        # The first good tick is recorded at once; later ones that write nothing are rare.
        self._renewed_at = -math.inf
        self._offer: Listener | None = None
        self._overseer = HangGuard(held)
        # When a wake-up may tick again (monotonic).
        self._rests_until = 0.0

    def tick_until_the_end(self) -> str:
        end, due = time.monotonic() + self._loop.slice_s, self._first_due()
        while True:
            is_woken = self._wait(due)
            if self._lifeline.is_cut():
                return self._give_up("stopped")
            if self._offer and self._offer.drain():
                return self._give_up(HANDED_OVER)
            if is_woken or time.time() >= due:
                self._tick(None if is_woken else time.time() - due)
            due = self._on_the_grid_after(time.time())
            if time.monotonic() >= end + self._loop.extension_s:
                return self._give_up("no successor came")
            if time.monotonic() >= end and self._offer is None:
                self._attempt(self._make_offer)

    def stop_listening(self) -> None:
        for listener in (*self._heard, *([self._offer] if self._offer else [])):
            listener.close()

    def close(self) -> None:
        self.stop_listening()
        self._overseer.stop()
        if self._step is not None:
            self._step.close()

    def _wait(self, due: float) -> bool:
        """Sleep until `due`, the lifeline's end, an offer's answer or a wake-up (True)."""
        seconds = min(due - time.time(), self._loop.every_s)
        self._lifeline.wait(seconds, *self._heard, *([self._offer] if self._offer else []))
        payloads = [payload for listener in self._heard for payload in listener.drain()]
        if payloads and all(payload == datagrams.PATIENT for payload in payloads):
            # A short job ends within this time: its start and its end are then recorded together.
            self._lifeline.wait(PATIENCE_S, *self._heard)
            self._drain()
        if payloads and (rest_s := self._rests_until - time.monotonic()) > 0:
            self._lifeline.wait(rest_s)
            self._drain()
        return bool(payloads)

    def _drain(self) -> None:
        for listener in self._heard:
            listener.drain()

    def _first_due(self) -> float:
        """The tick after the previous holder's last one; now if there was none recently."""
        last = self._report.last_tick_at
        if last is None or time.time() - last.timestamp() > RECENT_S:
            return time.time()
        return self._on_the_grid_after(last.timestamp())

    def _on_the_grid_after(self, at: float) -> float:
        every, phase = self._loop.every_s, self._loop.phase_s
        return ((at - phase) // every + 1) * every + phase

    def _tick(self, lateness_s: float | None) -> None:
        now, began = timezone.now(), time.monotonic()
        self._report.begin(now, lateness_s)
        self._attempt(lambda: self._step_once(now))
        if self._loop.rest_s:
            ended = time.monotonic()
            self._rests_until = ended + max(self._loop.rest_s, REST_SHARE * (ended - began))

    def _attempt(self, action: Callable[[], None]) -> None:
        """Run one tick.

        A fault is recorded, and the next tick follows; a lost lease ends the term.
        """
        try:
            action()
        except LeaseLost:
            raise
        except Exception as error:
            close_old_connections()
            self._failed(error)
        if self._lost:
            raise LeaseLost(self._loop.name)

    def _step_once(self, now: datetime) -> None:
        database.check_file()
        self._open_step().step(now)
        self._worked()

    def _open_step(self) -> Step:
        if self._step is None:
            step = self._loop.new_step(self._guard)
            self._overseer.oversee(step)
            step.open()
            self._step = step
        return self._step

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """The transaction for all writes of a step: see `monitor.runtime.policy.Guard`."""
        with transaction.atomic():
            self._renew(**self._report.fields())
            yield
        self._renewed_at = time.monotonic()

    def _renew(self, **fields: object) -> None:
        try:
            leases.renew(self._held, timezone.now(), **fields)
        except LeaseLost:
            # Stored, in case a step swallows the exception.
            self._lost = True
            raise

    def _worked(self) -> None:
        if self._report.worked():
            self._renew(failing_since_at=None, **self._report.fields())
            about = {"kind": "LOOP_RECOVERED", "loop": self._loop.name}
            logger.info("%s: works again", self._loop.name, extra=about)
        elif self._is_due_for_renewal():
            self._renew(**self._report.fields())
            self._renewed_at = time.monotonic()

    def _is_due_for_renewal(self) -> bool:
        third = self._held.spec.ttl.total_seconds() / 3
        return time.monotonic() - self._renewed_at >= third - 0.1

    def _failed(self, error: Exception) -> None:
        fields, is_news = self._report.failed(error, timezone.now())
        if is_news:
            about = {"kind": "LOOP_FAILED", "loop": self._loop.name}
            # The message names the file and the problem.
            trace = None if isinstance(error, database.DatabaseFileGone) else error
            logger.error("%s: %s", self._loop.name, one_line(error), exc_info=trace, extra=about)
        elif not self._is_due_for_renewal():
            return
        try:
            self._tell(fields, is_news)
        except LeaseLost:
            raise
        except Exception:
            # The database itself may fail; the next tick tries again.
            logger.debug("%s: could not record its fault", self._loop.name, exc_info=True)

    def _tell(self, fields: dict[str, Any], is_news: bool) -> None:
        with transaction.atomic():
            self._renew(**fields)
            if is_news:
                text = f"The {self._loop.name} failed: {fields['last_error']}"
                host, now = self._held.spec.host, timezone.now()
                # Already logged with its traceback, also if this cannot be stored.
                events.add("LOOP_FAILED", text, now=now, severity="error", host=host, logged=False)
        self._renewed_at = time.monotonic()

    def _make_offer(self) -> None:
        """Queue the successor, and listen for its request for the lease."""
        offer = Listener(f"{self._loop.name}-yield")
        try:
            with transaction.atomic():
                self._renew()
                enqueue(self._loop.name, after=self._held.epoch)
        except BaseException:
            offer.close()
            raise
        self._offer = offer

    def _give_up(self, why: str) -> str:
        leases.release(self._held, timezone.now())
        wake(f"{self._loop.name}-free")
        return why


class TickStats:
    """Starts from the lease's row, so that a new slice does not log a known fault again."""

    def __init__(self, row: Lease) -> None:
        self.last_tick_at = row.last_tick_at
        self.failing_since_at = row.failing_since_at
        self._key = row.last_error_key if row.failing_since_at else ""
        self._logged = {self._key}
        self._ticks = row.ticks
        self._late_ms: deque[float] = deque(maxlen=LATENESS_SAMPLES)

    def begin(self, now: datetime, lateness_s: float | None) -> None:
        self.last_tick_at = now
        self._ticks += 1
        if lateness_s is not None:
            self._late_ms.append(max(0.0, lateness_s * 1000))

    def fields(self) -> dict[str, Any]:
        """The columns of a tick that did something, stored when the lease is renewed."""
        fields: dict[str, Any] = {"last_tick_at": self.last_tick_at, "ticks": self._ticks}
        if self._late_ms:
            fields["lateness_p50_ms"] = quantile(self._late_ms, 0.50)
            fields["lateness_p99_ms"] = quantile(self._late_ms, 0.99)
        return fields

    def worked(self) -> bool:
        """Record a tick without a fault; True if it is the first one after a fault."""
        recovered, self.failing_since_at, self._key = self.failing_since_at is not None, None, ""
        return recovered

    def failed(self, error: Exception, now: datetime) -> tuple[dict[str, Any], bool]:
        """The columns that describe `error`, and whether the fault is new and must be logged."""
        self.failing_since_at = self.failing_since_at or now
        self._key = place_of(error)
        is_news = self._key not in self._logged
        self._logged.add(self._key)
        return {
            "failing_since_at": self.failing_since_at,
            "last_error": one_line(error),
            "last_error_key": self._key,
            "last_error_at": now,
        }, is_news


def one_line(error: Exception) -> str:
    """The fault in one line without secrets, because /healthz is public."""
    text = masked(" ".join(str(error).split()))
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__


def quantile(values: Sequence[float] | deque[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# Watches a step from a thread: a call that never returns ends the process.
#
# A driver may hang for ever, and a call into it cannot be cancelled. So the lease is released and
# another process takes over. A step that is only slow keeps its lease.

LOOK_EVERY_S = 0.25
RENEW_EVERY_S = 2.0
# Number of tries to store the hang; then the process ends anyway.
MOST_TRIES = 8


class HangGuard:
    """Calls `oversee(step)` until `stop`. `step.asking` names the call in progress.

    `step.asking_about`: the GPU that it is about, "" = none.
    """

    def __init__(self, held: HeldLease) -> None:
        self._held = held
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._tries = 0

    def oversee(self, step: Step) -> None:
        if self._thread is None and hasattr(step, "asking"):
            self._thread = threading.Thread(
                target=self._run, args=(step,), name="overseer", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, step: Step) -> None:
        renewed_at, was_busy = time.monotonic(), False
        try:
            while not self._stop.wait(LOOK_EVERY_S):
                about: str = getattr(step, "asking_about", "")
                call: tuple[str, float] | None = getattr(step, "asking", None)
                waited_s = time.monotonic() - call[1] if call else 0.0
                if call and waited_s >= patience_s(call[0]):
                    self._try_to_end(call[0], about, waited_s)
                elif call and was_busy and time.monotonic() - renewed_at >= RENEW_EVERY_S:
                    renewed_at = time.monotonic()
                    self._renew()
                was_busy = call is not None
        except LeaseLost:
            return
        finally:
            connection.close()

    def _renew(self) -> None:
        try:
            leases.renew(self._held, timezone.now())
        except LeaseLost:
            raise
        except Exception:
            logger.debug("Cannot renew the lease", exc_info=True)

    def _try_to_end(self, call: str, gpu: str, waited_s: float) -> None:
        loop = self._held.spec.loop
        self._tries += 1
        try:
            self._hand_over(call, gpu, waited_s)
        except LeaseLost:
            raise
        except Exception:
            # The database may be unavailable, too; then the watchdog replaces this process.
            if self._tries < MOST_TRIES:
                return
            about = {"kind": "OVERSEER_FAULT", "loop": loop}
            logger.exception("Cannot record that the %s hangs", loop, extra=about)
        about = {"kind": "NVML_HUNG", "loop": loop, "call": call, "gpu": gpu}
        logger.error("The %s hangs in %s and goes on in a fresh process", loop, call, extra=about)
        # Nothing else ends a process whose main thread is inside a driver call.
        os._exit(1)

    def _hand_over(self, call: str, gpu: str, waited_s: float) -> None:
        now, host = timezone.now(), self._held.spec.host
        text = hang_text(call, gpu, self._held.spec.loop, waited_s)
        with transaction.atomic():
            if not leases.release(self._held, now):
                raise LeaseLost(self._held.spec.name)
            # This process ends in a moment, so it logs by itself, whether or not the row is stored.
            events.add(
                "NVML_HUNG",
                text,
                now=now,
                severity="error",
                host=host,
                gpu_uuid=gpu,
                logged=False,
            )
            enqueue(self._held.spec.loop)
