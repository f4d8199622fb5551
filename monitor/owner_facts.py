"""Facts: whether somebody uses a GPU for themselves, where that comes before jobs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Presence(StrEnum):
    """free: nobody is there · suspect: somebody is, perhaps only for a moment: nothing new starts ·

    owner: somebody is there: jobs yield · leaving: they seem gone; what waits still waits a while.
    """

    FREE = "free"
    SUSPECT = "suspect"
    OWNER = "owner"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A program that only draws and is always there: so much memory of it tells of nobody.

    memory_bytes: what has been learned. level_bytes: what it held at `level_since`; where it stays
    quiet near that, it is learned.
    """

    program: str
    memory_bytes: int = 0
    level_bytes: int = 0
    level_since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerReading:
    """Who is on a GPU for themselves, since when it is so. `came_at`: when they were first seen.

    program, user, pid are of what tells most of them; None = nobody there, or unknown.
    until: when the GPU is free again if nobody comes back; None = nobody can tell.
    """

    gpu_uuid: str
    presence: Presence
    since: datetime
    came_at: datetime | None = None
    until: datetime | None = None
    program: str | None = None
    user: str | None = None
    pid: int | None = None
    residents: tuple[Resident, ...] = ()

    @property
    def keeps_closed(self) -> bool:
        """Whether nothing new may start there."""
        return self.presence is not Presence.FREE

    @property
    def is_told(self) -> bool:
        """Not of those who may be there only for a moment."""
        return self.presence in (Presence.OWNER, Presence.LEAVING)

    @property
    def who(self) -> str:
        """`alice's blender`."""
        return f"{self.user or 'somebody'}'s {self.program or 'program'}"
