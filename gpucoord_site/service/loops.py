"""The three loops: what runs how often, and the slices in which django-q2 runs them.

A slice is one task of about a minute. It holds the loop's lease, ticks on the wall clock's grid,
queues its successor, and goes on until that asks for the lease: a cluster that has silently
stopped taking tasks leaves no hole until it is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from typing import Any, cast

from django.conf import settings
from django_q.tasks import async_task
from msgspec import Struct

from monitor.runtime.policy import Guard, Step
from monitor.runtime.rows.leases import LeaseSpec

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
