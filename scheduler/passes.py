"""Door: one pass of the scheduler loop: end what has ended, place what fits, start it."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.utils import timezone

from monitor.stepping import Guard, Step
from monitor.wake import socket_folder
from scheduler.bounding import Bounder
from scheduler.dispatcher import Dispatcher
from scheduler.evicting import Evictor
from scheduler.executor import Executor
from scheduler.policy.following import ENDINGS, Move
from scheduler.specs import SpecWriter
from scheduler.store import keep_commits_synced
from scheduler.supply import plan_policy
from scheduler.withdrawing import Withdrawer


def build(guard: Guard) -> Step:
    """The scheduler's step for this host, from the settings."""
    config = settings.CONFIG
    bounder = Bounder(host=config.node, data=settings.DATA, lock_folder=settings.LOCK_FOLDER)
    bounder.open(timezone.now())
    specs = SpecWriter(
        data=settings.DATA,
        run_as=config.run_as,
        grace_s=config.cancel_grace_s,
        wake_folder=socket_folder(),
        checkpoints=config.checkpoints,
        bounder=bounder,
    )
    return Pass(
        Evictor(guard, config.node),
        Dispatcher(guard, config.node, plan_policy()),
        Executor(guard, config.node, specs),
        Told(guard, bounder),
        Withdrawer(guard, config.node),
    )


class Told:
    """Says once what this machine has to keep jobs within their bounds."""

    def __init__(self, guard: Guard, bounder: Bounder) -> None:
        self._guard = guard
        self._bounder: Bounder | None = bounder

    def step(self, now: datetime) -> None:
        if self._bounder is not None:
            with self._guard():
                self._bounder.record(now)
            self._bounder = None


class Pass:
    """First reap, so that what has become free is planned with; then plan; then start.

    Whoever is to leave its GPU is asked before that: the executor carries it to the runner.
    """

    def __init__(
        self,
        evictor: Evictor,
        dispatcher: Dispatcher,
        executor: Executor,
        told: Told,
        withdrawer: Withdrawer,
    ) -> None:
        self._evictor = evictor
        self._dispatcher = dispatcher
        self._executor = executor
        self._told = told
        self._withdrawer = withdrawer

    def open(self) -> None:
        self._executor.open()

    def step(self, now: datetime) -> dict[str, int]:
        """Returns how many attempts moved, and how many were placed."""
        # A placement must survive a power cut once its process runs. Set anew each time: the
        # connection may be a new one.
        keep_commits_synced(on=True)
        self._evictor.step(now)
        moves = self._executor.step(now)
        has_room = any(move in ENDINGS for move in moves.values())
        placed = self._dispatcher.step(now, has_room=has_room)
        self._executor.start(placed, now)
        if Move.YIELD in moves.values():
            self._withdrawer.step(now)
        self._told.step(now)
        return {"moved": len(moves), "placed": len(placed)}

    def close(self) -> None:
        self._executor.close()
        keep_commits_synced(on=False)
