"""Facts: one word beside a process or GPU of which an incident is open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Badge:
    """`text` says more; it counts for no comparison, as it changes every few seconds."""

    word: str
    severity: str
    incident: int
    text: str = field(compare=False)

    @property
    def is_warning(self) -> bool:
        return self.severity != "info"


@dataclass(frozen=True, slots=True)
class Badges:
    """By (GPU, pid); `gpus`: those that somebody hogs, with the worst badge.

    open: all open incidents, also those of no GPU. harmful: those of them that are warnings.
    """

    processes: Mapping[tuple[str, int], Badge] = field(default_factory=dict)
    gpus: Mapping[str, Badge] = field(default_factory=dict)
    open: int = 0
    harmful: int = 0


NONE = Badges()
