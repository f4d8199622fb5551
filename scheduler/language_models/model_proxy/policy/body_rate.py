"""Policy: how many bytes of bodies the endpoint parses for one user.

Parsing JSON holds up all streams of the endpoint, up to 0.02 s for each MiB. A user has AT_ONCE
bytes, and then BYTES_PER_S.
"""

from __future__ import annotations

BYTES_PER_S, AT_ONCE = 8.0 * 1024**2, 64.0 * 1024**2


class BodyRate:
    """Times are seconds of one clock, which the caller reads."""

    def __init__(self) -> None:
        # When the bodies of a user so far would all have been parsed at BYTES_PER_S.
        self._due: dict[int, float] = {}

    def delay(self, user: int, size: int, now: float) -> float:
        """Count a body; the seconds until it may be parsed, which are 0 if it may."""
        due = max(self._due.get(user, now), now) + size / BYTES_PER_S
        delay = due - now - AT_ONCE / BYTES_PER_S
        if delay > 1e-6:
            return delay
        self._due[user] = due
        return 0.0
