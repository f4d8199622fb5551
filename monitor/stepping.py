"""Facts: what a loop runs. A step does one pass of work and returns what it did."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol

# One database transaction that first renews the loop's lease. It raises LeaseLost, and rolls
# everything inside back, when another holder has taken over. All writes of a step go through it.
Guard = Callable[[], AbstractContextManager[None]]


class Step(Protocol):
    """Built as `build(guard) -> Step`; opened in the process that runs it, after the fork."""

    def open(self) -> None: ...

    def step(self, now: datetime) -> object:
        """One pass of work at `now` (aware). Returns what it did; raises on a fault."""

    def close(self) -> None: ...
