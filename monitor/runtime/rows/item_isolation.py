"""Run an action for each item of a loop so that a failing item does not affect the others.

An item that fails is rolled back, reported once, and retried after a growing delay. Both are in
rows: a new process neither repeats the report nor forgets the delay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from time import monotonic
from traceback import extract_tb
from typing import Protocol, TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError, connection, transaction

from monitor.models import ItemFault
from monitor.runtime.policy import Guard
from monitor.runtime.rows.leases import LeaseLost

REPEAT_S = 60.0
# Bounds the memory if errors keep coming from other lines: the oldest are forgotten.
MOST_FAULTS = 100


class FaultLog:
    """Errors of the same type and the same line of code are the same fault."""

    def __init__(self, logger: logging.Logger, repeat_s: float = REPEAT_S) -> None:
        self._logger = logger
        self._repeat_s = repeat_s
        self._logged_at: dict[str, float] = {}

    def log(self, error: BaseException, text: str, extra: Mapping[str, object]) -> None:
        """Log `text` with the traceback, unless this fault was logged within `repeat_s`."""
        fault, now = place_of(error), monotonic()
        if now < self._logged_at.get(fault, float("-inf")) + self._repeat_s:
            return
        self._logged_at.pop(fault, None)
        self._logged_at[fault] = now
        if len(self._logged_at) > MOST_FAULTS:
            del self._logged_at[next(iter(self._logged_at))]
        self._logger.error(text, exc_info=error, extra=dict(extra))


def place_of(error: BaseException) -> str:
    """The type and the place of a fault: equal for faults that differ only in their figures."""
    frames = extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {place}"[:200]


T = TypeVar("T")
R = TypeVar("R")
# The class of PostgreSQL errors about a value or row that is too large (54000 and others).
_TOO_LARGE = "54"
# Errors in the values of a row that SQLite reports with the code of a broken database.
_OF_VALUES = ("integer overflow", "malformed JSON", "string or blob too big")
FIRST_RETRY = timedelta(seconds=1)
LONGEST_RETRY = timedelta(seconds=10)
FORGET_AFTER = timedelta(minutes=10)
# An item that fails each second is not written each second.
SAVE_EVERY = timedelta(seconds=10)
ITEM_KINDS = ("ITEM_FAILED",)
FAULT_KIND = ITEM_KINDS[0]
logger = logging.getLogger(__name__)


def is_of_step(error: Exception) -> bool:
    """Whether an error concerns the whole step, not one item: the database is away, or another
    process took over the lease."""
    if isinstance(error, OperationalError):
        state = getattr(error.__cause__, "sqlstate", None) or ""
        return not (state.startswith(_TOO_LARGE) or str(error) in _OF_VALUES)
    return isinstance(error, InterfaceError | LeaseLost)


class Convert(Protocol):
    """Turns items into something else; those that cannot be converted are left out."""

    def __call__(
        self, items: Sequence[T], name: Callable[[T], str], action: Callable[[T], R], /
    ) -> list[tuple[T, R]]: ...


def convert_all(
    items: Sequence[T], _name: Callable[[T], str], action: Callable[[T], R]
) -> list[tuple[T, R]]:
    """Without isolation: the first failing item raises."""
    return [(item, action(item)) for item in items]


class ItemIsolation:
    """The faults of one part of a loop on one host.

    `longest_retry`: the largest delay between two tries of a failing item; zero = no delay.
    `guard`: the transaction for fault rows that are written outside of one.
    `reports`: whether faults are logged and recorded; pages only pass over the item.
    """

    def __init__(
        self,
        host: str,
        part: str,
        guard: Guard | None = None,
        longest_retry: timedelta = LONGEST_RETRY,
        *,
        reports: bool = True,
    ) -> None:
        self._host = host
        self._part = part
        self._guard = guard or transaction.atomic
        self._longest_retry = longest_retry
        self._reports = reports
        self._faults: dict[str, ItemFault] | None = None if reports else {}
        self._saved_at: dict[str, datetime] = {}

    def each(
        self,
        items: Iterable[T],
        name: Callable[[T], str],
        action: Callable[[T], R],
        now: datetime,
        kind: str = FAULT_KIND,
    ) -> list[tuple[T, R]]:
        """The items whose action succeeded, each with its result, in their order."""
        results: list[tuple[T, R]] = []

        def run(item: T) -> None:
            results.append((item, action(item)))

        for item in items:
            self.attempt(name(item), partial(run, item), now, kind)
        return results

    def convert(
        self,
        items: Sequence[T],
        name: Callable[[T], str],
        action: Callable[[T], R],
        now: datetime,
    ) -> list[tuple[T, R]]:
        """Like `each`, for an action that writes nothing: costs nothing while no item fails."""
        try:
            results = [(item, action(item)) for item in items]
        except Exception as error:
            if is_of_step(error):
                raise
            return self.each(items, name, action, now)
        if self._known():
            for item in items:
                self.worked(name(item))
        return results

    def converter(self, now: datetime) -> Convert:
        """`convert` at this instant, for a function that has no clock."""

        def convert(
            items: Sequence[T], name: Callable[[T], str], action: Callable[[T], R]
        ) -> list[tuple[T, R]]:
            return self.convert(items, name, action, now)

        return convert

    def has_faults(self, now: datetime) -> bool:
        """Whether any item of this part fails."""
        return any(self._is_recent(fault, now) for fault in self._known().values())

    def _is_recent(self, fault: ItemFault, now: datetime) -> bool:
        """A failing item is retried soon, so an older fault is of an item that works or is gone."""
        return abs(now - fault.last_at) < FORGET_AFTER

    def attempt(
        self, item: str, action: Callable[[], object], now: datetime, kind: str = FAULT_KIND
    ) -> bool:
        """Run the action of one item, inside a savepoint if a transaction is open.

        False: it failed now, or a delay after an earlier failure is not over.
        """
        if self.is_delayed(item, now):
            return False
        try:
            with transaction.atomic() if connection.in_atomic_block else nullcontext():
                action()
        except Exception as error:
            if is_of_step(error):
                raise
            self.failed(item, error, now, kind)
            return False
        self.worked(item)
        return True

    def is_delayed(self, item: str, now: datetime) -> bool:
        """Whether the item failed and is not due for the next try."""
        fault = self._known().get(item)
        # A clock that was set back must not delay it further.
        return fault is not None and now < fault.retry_at <= now + self._longest_retry

    def failed(self, item: str, error: Exception, now: datetime, kind: str = FAULT_KIND) -> None:
        """Record a failure of the item; a fault that is new is logged with its traceback."""
        stored = self._known().get(item)
        if stored is not None and not self._is_recent(stored, now):
            stored = None
        fault = place_of(error)
        if self._reports and (stored is None or stored.fault != fault):
            about = {"kind": kind, "part": self._part, "item": item}
            how = f"{type(error).__name__}: {error}"[:500]
            logger.error("%s: %s failed: %s", self._part, item, how, exc_info=error, extra=about)
        failures = stored.failures + 1 if stored else 1
        delay = min(self._longest_retry, FIRST_RETRY * 2 ** min(failures - 1, 16))
        row = ItemFault(
            host=self._host,
            part=self._part,
            item=item[:200],
            fault=fault,
            failures=failures,
            since_at=stored.since_at if stored else now,
            last_at=now,
            retry_at=now + delay,
        )
        self._known()[item] = row
        saved_at = self._saved_at.get(item)
        if (
            stored is None
            or stored.fault != fault
            or saved_at is None
            or now - saved_at >= SAVE_EVERY
        ):
            self._saved_at[item] = now
            self._write(lambda: _save(row))

    def worked(self, item: str) -> None:
        """Forget the failures of the item, if there are any."""
        row = self._known().pop(item, None)
        if row is not None:
            rows = ItemFault.objects.filter(host=self._host, part=self._part, item=row.item)
            self._write(rows.delete)

    def _known(self) -> dict[str, ItemFault]:
        if self._faults is None:
            rows = ItemFault.objects.filter(host=self._host, part=self._part)
            self._faults = {row.item: row for row in rows}
        return self._faults

    def _write(self, change: Callable[[], object]) -> None:
        """If a fault cannot be recorded, a later process reports it once more."""
        if not self._reports:
            return
        inside = transaction.atomic() if connection.in_atomic_block else self._guard()
        with suppress(DatabaseError), inside:
            change()


def _save(row: ItemFault) -> None:
    ItemFault.objects.bulk_create(
        [row],
        update_conflicts=True,
        unique_fields=["host", "part", "item"],
        update_fields=["fault", "failures", "since_at", "last_at", "retry_at"],
    )
