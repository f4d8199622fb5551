"""The controller: every few seconds its parts judge the newest snapshot, and chores are queued."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol
from zlib import crc32

from django.conf import settings
from django.db import OperationalError, transaction

from monitor import chores, constraints, policies, store, tasks
from monitor.alerting import Alerts
from monitor.policy.constraints import ConstraintPolicy, judge
from monitor.readings import Snapshot
from monitor.stepping import Guard
from scheduler.charging import Charging
from scheduler.enforcement import Enforcement
from scheduler.idling import IdleResources
from scheduler.judging import HogWatch
from scheduler.lock_claims import LockClaims
from scheduler.lost_gpus import LostGpus
from scheduler.pressure import Pressure
from scheduler.runner.enforcing import Hands
from scheduler.stepping_back import SteppingBack

# An older snapshot says nothing about now.
STALE_AFTER = timedelta(seconds=15)
# What a worker is to do again and again.
CHORES = {
    "roll_up": timedelta(minutes=1),
    "prune": timedelta(minutes=5),
    "find_patterns": timedelta(hours=1),
}
CLEARED = timedelta(minutes=10)
logger = logging.getLogger(__name__)


class Part(Protocol):
    """One thing that the controller judges; what it needs to remember is in rows."""

    name: str

    def judge(self, snapshot: Snapshot | None, now: datetime) -> object:
        """Judge once, inside the tick's transaction; None = there is no fresh snapshot.

        Returns what it found, for logs and tests. It never waits for anything outside.
        """


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one pass did: what each part found (an error is that part's alone); queued chores."""

    found: Mapping[str, object]
    queued: tuple[str, ...]


class Clearing:
    """The part that has ended jobs' files taken away, on this host: each has its own."""

    name = "clearing"

    def __init__(self, host: str, queue: Callable[[str, str], None]) -> None:
        self._queue = queue
        self._chore = f"clear {host[:24]} {crc32(host.encode()):08x}"

    def judge(self, snapshot: Snapshot | None, now: datetime) -> bool:
        is_due = chores.due(self._chore, CLEARED, now)
        if is_due:
            self._queue("clear_files", "scheduler.tasks")
        return is_due


class Constraints:
    """The part that says what the host is short of."""

    name = "constraints"

    def __init__(self, host: str, data_folder: str) -> None:
        self._host = host
        self._data_folder = data_folder

    def judge(self, snapshot: Snapshot | None, now: datetime) -> object:
        if snapshot is None:
            return None
        known = constraints.open_keys(self._host)
        policy = policies.current(ConstraintPolicy)
        cpu = constraints.cpu_pct(self._host, now) if policy.cpu_busy_pct < 100 else None
        verdict = judge(snapshot, self._data_folder, known, policy, cpu)
        constraints.apply(verdict, self._host, now)
        return verdict


class Controller:
    """A Step. What is open is in the rows, so a restart changes nothing."""

    def __init__(
        self, guard: Guard, host: str, queue: Callable[[str], None], parts: Sequence[Part]
    ) -> None:
        self._guard = guard
        self._host = host
        self._queue = queue
        self._parts = parts
        self._failed: dict[str, str] = {}

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to close."""

    def step(self, now: datetime) -> Judgement:
        """Judge once at `now`."""
        newest = store.newest(self._host)
        fresh = newest if newest is not None and now - newest.at <= STALE_AFTER else None
        with self._guard():
            found = {part.name: self._ask(part, fresh, now) for part in self._parts}
            queued = tuple(name for name, every in CHORES.items() if chores.due(name, every, now))
            for name in queued:
                self._queue(name)
        return Judgement(found, queued)

    def _ask(self, part: Part, snapshot: Snapshot | None, now: datetime) -> object:
        """A part that fails takes back what it wrote, and keeps no other from judging."""
        try:
            with transaction.atomic():
                found = part.judge(snapshot, now)
        except OperationalError:
            raise
        except Exception as error:
            self._tell(part.name, error)
            return error
        self._failed.pop(part.name, None)
        return found

    def _tell(self, name: str, error: Exception) -> None:
        """Once for each new way to fail."""
        how = f"{type(error).__name__}: {error}"
        if self._failed.get(name) != how:
            self._failed[name] = how
            about = {"kind": "JUDGING_FAILED", "part": name}
            logger.error("Judging %s failed: %s", name, how, exc_info=error, extra=about)


def build(guard: Guard) -> Controller:
    """The controller of this host."""
    config = settings.CONFIG
    parts: tuple[Part, ...] = (
        Constraints(config.node, str(settings.DATA)),
        Charging(config.node, config.time_zone),
        HogWatch(config.node),
        Pressure(config.node),
        LostGpus(config.node),
        IdleResources(config.node),
        Enforcement(config.node, Hands(Path(settings.DATA) / "run" / "pacing")),
        Alerts(tasks.queue),
        LockClaims(config.node, settings.LOCK_FOLDER),
        SteppingBack(config.node),
        Clearing(config.node, tasks.queue),
    )
    return Controller(guard, config.node, tasks.queue, parts)
