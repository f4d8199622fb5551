"""Policy: whether an instance sleeps instead of ending, and whether its memory was given back.

The ladder: sleep level 1 (weights in host memory, if there is room) · level 2 · stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from scheduler.facts.model_services import InstanceFact

GIB = 1024**3
# A sleeping instance may keep this much memory, or this part of its peak.
LEAST_LEFT_BYTES, LEFT_PART = 2 * GIB, 0.1
RELEASES_WITHIN = timedelta(seconds=15)
LEVEL = "{level}"
# The server has this long to answer that it sleeps or is awake.
ANSWERS_WITHIN = timedelta(seconds=60)


class Release(StrEnum):
    """Whether the driver lists the memory as given back. awaited: there is still time."""

    AWAITED = "awaited"
    RELEASED = "released"
    LEFT = "left"


def level(
    instance: InstanceFact,
    sleep_path: str,
    *,
    needs_bytes: int | None,
    host_free_bytes: int | None,
) -> int:
    """The level at which it sleeps; 0 = it is stopped.

    needs_bytes: of the host at level 1. An instance whose last sleep left memory is stopped.
    Without {level} in its path, a server decides what it keeps, so host memory is planned.
    """
    if not sleep_path or instance.left_memory:
        return 0
    has_room = needs_bytes is not None and host_free_bytes is not None
    if has_room and (needs_bytes or 0) <= (host_free_bytes or 0):
        return 1
    return 2 if LEVEL in sleep_path else 0


def path_of(sleep_path: str, level: int) -> str:
    return sleep_path.replace(LEVEL, str(level))


def most_left(peak_bytes: int | None) -> int:
    """The most memory of a sleeping instance on a GPU where it held `peak_bytes` awake."""
    return max(LEAST_LEFT_BYTES, round(LEFT_PART * (peak_bytes or 0)))


def held(
    own_bytes: Sequence[int | None], *, used_bytes: int | None, others_bytes: int
) -> int | None:
    """The memory of an instance on a GPU, at most; None = unknown.

    own_bytes: of its processes there, as listed. Without any, its memory is what the GPU has in
    use beside the listed memory of other processes.
    """
    if own_bytes:
        known = [size for size in own_bytes if size is not None]
        return sum(known) if len(known) == len(own_bytes) else None
    return None if used_bytes is None else max(0, used_bytes - others_bytes)


def judge(held_bytes: int | None, most_bytes: int, since: datetime, now: datetime) -> Release:
    """held_bytes: what its processes hold on its fullest GPU. Unknown is never free."""
    if held_bytes is not None and held_bytes < most_bytes:
        return Release.RELEASED
    return Release.AWAITED if now - since < RELEASES_WITHIN else Release.LEFT
