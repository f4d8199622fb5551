"""Facts: the space of a file system, as `df` counts it."""

from __future__ import annotations

from dataclasses import dataclass


def used_pct(used_bytes: int | None, available_bytes: int | None) -> float | None:
    """Used part of the usable space in percent, as `df` counts it.

    The blocks that are reserved for root are neither used nor available. None: it is unknown, or
    the file system has no size, as /proc.
    """
    if used_bytes is None or available_bytes is None:
        return None
    usable = used_bytes + available_bytes
    return 100 * used_bytes / usable if usable else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemSpace:
    """The space of a file system, without the blocks that are reserved for root."""

    used_bytes: int
    available_bytes: int

    @property
    def usable_bytes(self) -> int:
        return self.used_bytes + self.available_bytes

    @property
    def used_pct(self) -> float | None:
        return used_pct(self.used_bytes, self.available_bytes)
