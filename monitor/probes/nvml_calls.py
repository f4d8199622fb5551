"""Every question to NVML goes through here: which is asked, how many failed, what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from monitor.probes import nvml_faults as faults
from monitor.probes.nvml_costs import CallTimes
from monitor.probes.nvml_faults import Refused


class Calls:
    """`call(name, *args)` asks NVML or raises Refused. One thread asks, others may look."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.asking: tuple[str, float] | None = None
        self.query_errors = 0
        self.init_failures = 0
        self.times = CallTimes()

    def must(self, name: str, *args: Any) -> Any:
        """The answer, or Refused."""
        began, failed = time.monotonic(), False
        self.asking = (name, began)
        try:
            return self._call(name, *args)
        except Refused as refused:
            failed = self._count(name, refused)
            raise
        finally:
            self.asking = None
            self.times.add(name, time.monotonic() - began, failed)

    def ask(self, name: str, *args: Any) -> Any:
        """The answer, or None where this GPU or driver has none."""
        try:
            return self.must(name, *args)
        except Refused as refused:
            if refused.is_fatal:
                raise
            return None

    def take_counts(self) -> tuple[int, int]:
        """Query errors and init failures since the last time that they were taken."""
        counts = (self.query_errors, self.init_failures)
        self.query_errors = self.init_failures = 0
        return counts

    def _count(self, name: str, refused: Refused) -> bool:
        """Whether it was an error, and not just that there is no answer."""
        failed = name == "nvmlInit" or refused.code not in faults.NO_ANSWER
        if name == "nvmlInit":
            self.init_failures += 1
        elif failed:
            self.query_errors += 1
        return failed


class Answers:
    """The answers of one GPU in one sweep: whether some came, and the first fault if not.

    `last` keeps the newest: they stand in for the calls that are left out for being slow.
    """

    def __init__(self, calls: Calls, handle: Any, last: dict[str, Any]) -> None:
        self._calls = calls
        self._handle = handle
        self._last = last
        self.some = False
        self.fault: faults.Fault | None = None

    @property
    def is_bad(self) -> bool:
        """Nothing answered but faults, or the GPU itself asks for a reset."""
        return self.fault is not None and (not self.some or self.fault is faults.RESET)

    def value(self, name: str, *args: Any) -> Any:
        key = f"{name}{args}"
        self._calls.times.pace(name)
        if key not in self._last or self._calls.times.is_due(name):
            self._last[key] = self.of(lambda: self._calls.must(name, self._handle, *args))
        elif self._last[key] is not None:
            self.some = True
        return self._last[key]

    def of(self, ask: Callable[[], Any]) -> Any:
        try:
            answer = ask()
        except Refused as refused:
            if refused.is_fatal:
                raise
            if refused.code not in faults.NO_ANSWER:
                self.fault = self.fault or refused.fault
            return None
        self.some = True
        return answer
