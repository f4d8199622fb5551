"""Facts: presence of a GPU's owner, for which jobs yield."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct


class Presence(StrEnum):
    """free: no owner process · suspect: perhaps only for a moment, no job starts ·

    owner: jobs yield · leaving: the owner seems gone, jobs wait a little longer.
    """

    FREE = "free"
    SUSPECT = "suspect"
    OWNER = "owner"
    LEAVING = "leaving"


class BaselineProcess(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A background graphics program whose usual memory does not count as presence.

    memory_bytes: what has been learned. level_bytes: what it held at `level_since`; where it stays
    quiet near that, it is learned.
    """

    program: str
    memory_bytes: int = 0
    level_bytes: int = 0
    level_since: datetime


class OwnerReading(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The presence of an interactive user on a GPU, and since when. `came_at`: first seen.

    program, user, pid: the process with the strongest sign; None = absent or unknown. until: when
    the GPU is free again if the user does not return; None = unknown.
    """

    gpu_uuid: str
    presence: Presence
    since: datetime
    came_at: datetime | None = None
    until: datetime | None = None
    program: str | None = None
    user: str | None = None
    pid: int | None = None
    residents: tuple[BaselineProcess, ...] = ()

    @property
    def keeps_closed(self) -> bool:
        """Whether no new job may start there."""
        return self.presence is not Presence.FREE

    @property
    def is_reported(self) -> bool:
        """Whether the user is reported; a suspected user is not."""
        return self.presence in (Presence.OWNER, Presence.LEAVING)

    @property
    def description(self) -> str:
        """`alice's blender`."""
        return f"{self.user or 'an unknown user'}'s {self.program or 'program'}"
