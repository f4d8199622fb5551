"""Door: one pass of the scheduler loop: end what has ended, place what fits, start it."""

from __future__ import annotations

import os
from datetime import datetime

from django.conf import settings

from monitor.policy.limits import cpu_places
from monitor.probes.limits import LimitsProbe
from monitor.stepping import Guard, Step
from monitor.wake import socket_folder
from scheduler.dispatcher import Dispatcher
from scheduler.executor import Executor
from scheduler.plans import PlanPolicy
from scheduler.policy.following import ENDINGS
from scheduler.specs import SpecWriter
from scheduler.store import keep_commits_synced


def build(guard: Guard) -> Step:
    """The scheduler's step for this host, from the settings."""
    config = settings.CONFIG
    specs = SpecWriter(
        data=settings.DATA,
        run_as=config.run_as,
        grace_s=config.cancel_grace_s,
        wake_folder=socket_folder(),
    )
    limits = LimitsProbe(config.cpus, config.memory_gib).read(os.cpu_count(), None)
    policy = PlanPolicy(
        margin_bytes=config.memory_margin_mib * 1024**2,
        cpu_jobs=cpu_places(config.cpu_jobs, limits),
    )
    return Pass(Dispatcher(guard, config.node, policy), Executor(guard, config.node, specs))


class Pass:
    """First reap, so that what has become free is planned with; then plan; then start."""

    def __init__(self, dispatcher: Dispatcher, executor: Executor) -> None:
        self._dispatcher = dispatcher
        self._executor = executor

    def open(self) -> None:
        self._executor.open()

    def step(self, now: datetime) -> dict[str, int]:
        """Returns how many attempts moved, and how many were placed."""
        # A placement must survive a power cut once its process runs. Set anew each time: the
        # connection may be a new one.
        keep_commits_synced(on=True)
        moves = self._executor.step(now)
        has_room = any(move in ENDINGS for move in moves.values())
        placed = self._dispatcher.step(now, has_room=has_room)
        self._executor.start(placed, now)
        return {"moved": len(moves), "placed": len(placed)}

    def close(self) -> None:
        self._executor.close()
        keep_commits_synced(on=False)
