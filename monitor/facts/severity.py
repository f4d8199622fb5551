"""Facts: how much an incident delays others, and which part of it does most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

SEVERITIES = {"error": 2, "warning": 1}
# Below it, and within a factor of two above it, waiting times count as equal: several incidents
# that delay the same jobs would change places all the time.
STEP_S = 300


def harm(waited_s: float) -> int:
    """The class of a delay: 0 below STEP_S, then one more for each doubling."""
    return int(waited_s // STEP_S).bit_length()


class Part(Protocol):
    """One rule of an incident on one GPU; see the row."""

    severity: Any
    waited_jobs: Any
    waited_s: Any
    closed_at: Any


P = TypeVar("P", bound=Part)


def worst_part(parts: Sequence[P]) -> P:
    """The open part of an incident that delays other users most; `parts`: the lead first.

    Equal parts, and parts that are all closed: the lead.
    """
    return max((part for part in parts if part.closed_at is None), key=_harm, default=parts[0])


def _harm(part: Part) -> tuple[int, bool, int]:
    return SEVERITIES.get(part.severity, 0), part.waited_jobs > 0, harm(part.waited_s)
