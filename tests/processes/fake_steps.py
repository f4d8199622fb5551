"""Steps for tests with real processes: each tick leaves a row, with the epoch it was made under."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime
from pathlib import Path

from django.conf import settings

from gpucoord_site.service.slices import Loop
from monitor.journal.rows import events
from monitor.models import Lease
from monitor.runtime.policy import Guard

SLICE_S = float(os.environ.get("FAKE_SLICE_S", "60"))
STEPS = "tests.processes.fake_steps"
LOOPS = (
    Loop(name="sampler", every_s=1, build=f"{STEPS}:Sampler", slice_s=SLICE_S),
    Loop(name="controller", every_s=5, build=f"{STEPS}:Controller", slice_s=SLICE_S),
    Loop(
        name="scheduler",
        every_s=1,
        build=f"{STEPS}:Scheduler",
        wake="scheduler",
        slice_s=SLICE_S,
    ),
)


class Ticking:
    """Writes an event per tick. Files in the data folder make it fail or hang."""

    loop = ""
    asking: tuple[str, float] | None = None

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def open(self) -> None:
        pass

    def step(self, now: datetime) -> None:
        if self._is_asked_to("fail"):
            raise RuntimeError(f"asked to fail at {now}")
        if self._is_asked_to("hang"):
            time.sleep(60)
        if self._is_asked_to("hang-in-a-call"):
            self._call(60)
        if self._is_asked_to("be-slow"):
            for _ in range(7):
                self._call(2.5)
        with self._guard():
            epoch = Lease.objects.get(loop=self.loop).epoch
            text = json.dumps({"epoch": epoch, "pid": os.getpid(), "t": time.time()})
            events.add(f"TICK_{self.loop.upper()}", text, now=now)

    def _is_asked_to(self, do: str) -> bool:
        """Answers beside the file that asks, so that a test knows that it was heard."""
        is_requested = (Path(settings.DATA) / f"{do}-{self.loop}").exists()
        if is_requested:
            (Path(settings.DATA) / f"{do}-{self.loop}.heard").touch()
        return is_requested

    def _call(self, seconds: float) -> None:
        self.asking = ("nvmlDeviceGetUtilizationRates", time.monotonic())
        time.sleep(seconds)
        self.asking = None

    def close(self) -> None:
        pass


class Sampler(Ticking):
    loop = "sampler"


class Controller(Ticking):
    loop = "controller"


class Scheduler(Ticking):
    loop = "scheduler"
