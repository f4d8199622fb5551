"""Watches a step from a thread beside it: a call that never comes back ends the process.

A device's driver may hang for good, and a call into it can't be cancelled. So the lease is given
up and another process takes over; a step that is only slow keeps its lease instead.
"""

from __future__ import annotations

import logging
import os
import threading
import time

from django.db import connection, transaction
from django.utils import timezone

from gpucoord_site import loops
from monitor import events, leases
from monitor.leases import Held, LeaseLost
from monitor.stepping import Step

# One call this long hangs. Starting the driver takes long where nothing keeps it loaded.
HUNG_S, HUNG_STARTING_S = 6.0, 30.0
STARTING = ("nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandleByIndex")
LOOK_EVERY_S = 0.25
RENEW_EVERY_S = 2.0
# So often the hang could not be written down: then the process ends without.
MOST_TRIES = 8
logger = logging.getLogger(__name__)


class Overseer:
    """`oversee(step)` from then on, until `stop`. A step tells by `asking` what it waits for."""

    def __init__(self, held: Held) -> None:
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
                asked: tuple[str, float] | None = getattr(step, "asking", None)
                waited_s = time.monotonic() - asked[1] if asked else 0.0
                if asked and waited_s >= _patience_s(asked[0]):
                    self._try_to_end(asked[0], waited_s)
                elif asked and was_busy and time.monotonic() - renewed_at >= RENEW_EVERY_S:
                    renewed_at = time.monotonic()
                    self._renew()
                was_busy = asked is not None
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
            logger.debug("The lease can't be renewed now", exc_info=True)

    def _try_to_end(self, call: str, waited_s: float) -> None:
        loop = self._held.spec.loop
        self._tries += 1
        try:
            self._hand_over(call, waited_s)
        except LeaseLost:
            raise
        except Exception:
            # The database itself may be away; the watchdog outside replaces us then.
            if self._tries < MOST_TRIES:
                return
            about = {"kind": "OVERSEER_FAULT", "loop": loop}
            logger.exception("The hang of the %s can't be written down", loop, extra=about)
        about = {"kind": "NVML_HUNG", "loop": loop, "call": call}
        logger.error("The %s hangs in %s and goes on in a fresh process", loop, call, extra=about)
        # Nothing else ends a process whose main thread waits for a driver.
        os._exit(1)

    def _hand_over(self, call: str, waited_s: float) -> None:
        now, host = timezone.now(), self._held.spec.host
        text = (
            f"The NVIDIA driver hangs: {call} did not come back within {waited_s:.0f} s."
            f" The {self._held.spec.loop} goes on in a fresh process."
        )
        with transaction.atomic():
            if not leases.release(self._held, now):
                raise LeaseLost(self._held.spec.name)
            # This process has only a moment left: it logs by itself, whatever happens to the row.
            events.add("NVML_HUNG", text, now=now, severity="error", host=host, logged=False)
            loops.enqueue(self._held.spec.loop)


def _patience_s(call: str) -> float:
    return HUNG_STARTING_S if call in STARTING else HUNG_S
