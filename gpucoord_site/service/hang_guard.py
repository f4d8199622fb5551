"""Watches a step from a thread: a call that never returns ends the process.

A driver may hang for ever, and a call into it cannot be cancelled. So the lease is released and
another process takes over. A step that is only slow keeps its lease.
"""

from __future__ import annotations

import logging
import os
import threading
import time

from django.db import connection, transaction
from django.utils import timezone

from gpucoord_site.service import loops
from monitor.gpus.policy.hangs import hang_text
from monitor.gpus.sampling.probes.nvml.faults import patience_s
from monitor.journal.rows import events
from monitor.runtime.facts import Step
from monitor.runtime.rows import leases
from monitor.runtime.rows.leases import HeldLease, LeaseLost

LOOK_EVERY_S = 0.25
RENEW_EVERY_S = 2.0
# Number of tries to store the hang; then the process ends anyway.
MOST_TRIES = 8
logger = logging.getLogger(__name__)


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
            loops.enqueue(self._held.spec.loop)
