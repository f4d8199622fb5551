"""The controller: every few seconds it judges the newest snapshot and has chores done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings

from monitor import chores, constraints, store, tasks
from monitor.policy.constraints import ConstraintPolicy, Verdict, judge
from monitor.stepping import Guard

# An older snapshot says nothing about now.
STALE_AFTER = timedelta(seconds=15)
# What a worker is to do again and again.
CHORES = {"roll_up": timedelta(minutes=1), "prune": timedelta(minutes=5)}


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one pass did: the constraints that began and ended; which chores were queued."""

    verdict: Verdict | None
    queued: tuple[str, ...]


class Controller:
    """A Step. What is open is in the rows, so a restart changes nothing."""

    def __init__(
        self,
        guard: Guard,
        host: str,
        data_folder: str,
        queue: Callable[[str], None],
        policy: ConstraintPolicy | None = None,
    ) -> None:
        self._guard = guard
        self._host = host
        self._data_folder = data_folder
        self._queue = queue
        self._policy = policy or ConstraintPolicy()

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to close."""

    def step(self, now: datetime) -> Judgement:
        """Judge once at `now`."""
        snapshot = store.newest(self._host)
        with self._guard():
            verdict = None
            if snapshot is not None and now - snapshot.at <= STALE_AFTER:
                known = constraints.open_keys(self._host)
                verdict = judge(snapshot, self._data_folder, known, self._policy)
                constraints.apply(verdict, self._host, now)
            queued = tuple(name for name, every in CHORES.items() if chores.due(name, every, now))
            for name in queued:
                self._queue(name)
        return Judgement(verdict, queued)


def build(guard: Guard) -> Controller:
    """The controller of this host."""
    config = settings.CONFIG
    policy = ConstraintPolicy(gpu_c=(config.gpu_hot_c, config.gpu_hot_c - config.gpu_cool_by_c))
    return Controller(guard, config.node, str(settings.DATA), tasks.queue, policy)
