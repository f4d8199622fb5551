"""Facts: states of a batch and of its items, and the limits of a batch."""

from __future__ import annotations

from enum import StrEnum

MOST_ITEMS = 100_000
LONGEST_ITEM = 4096


class BatchState(StrEnum):
    """complete: every item succeeded. failed: all items have ended, and some have failed."""

    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ItemState(StrEnum):
    """queued: no job yet. assigned: its job waits for a GPU, or starts."""

    QUEUED = "queued"
    ASSIGNED = "assigned"
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"


# An item of these states has a job that has not ended.
OPEN_ITEMS = (ItemState.ASSIGNED.value, ItemState.RUNNING.value)
