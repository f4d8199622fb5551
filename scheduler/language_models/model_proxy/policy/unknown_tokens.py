"""Policy: how often tokens that are not known to be valid are looked up for one address.

A look-up reads the database. An address has LOOKUPS at once and then one each INTERVAL_S. Tokens
that were valid before do not count, so a flood of invalid ones does not stop their users.
"""

from __future__ import annotations

from hashlib import sha256

INTERVAL_S, LOOKUPS = 0.1, 100
# A token that is made valid, such as that of a user who is active again, works after this time.
REFUSED_FOR_S = 1.0
MOST_ADDRESSES = MOST_REFUSED = 1000
# Addresses beyond MOST_ADDRESSES share one limit.
OTHERS = ""


class UnknownTokens:
    """Times are seconds of one clock, which the caller reads."""

    def __init__(self) -> None:
        # When the look-ups of an address so far would all have been made one each INTERVAL_S.
        self._due: dict[str, float] = {}
        self._refused: dict[bytes, float] = {}

    def is_refused(self, token: str, now: float) -> bool:
        """Whether the same token was refused within REFUSED_FOR_S."""
        return now < self._refused.get(_digest(token), 0.0)

    def delay(self, address: str, now: float) -> float:
        """Count a look-up; the seconds until it may be made, which are 0 if it may."""
        key = self._key(address, now)
        due = max(self._due.get(key, now), now)
        delay = due + INTERVAL_S - (now + LOOKUPS * INTERVAL_S)
        if delay > 1e-6:
            return delay
        self._due[key] = due + INTERVAL_S
        return 0.0

    def add(self, token: str, now: float) -> None:
        """The token is invalid."""
        if len(self._refused) >= MOST_REFUSED:
            self._refused = {key: until for key, until in self._refused.items() if until > now}
        if len(self._refused) < MOST_REFUSED:
            self._refused[_digest(token)] = now + REFUSED_FOR_S

    def give_back(self, address: str) -> None:
        """The token was valid, so its look-up does not count."""
        key = address if address in self._due else OTHERS
        if key in self._due:
            self._due[key] -= INTERVAL_S

    def _key(self, address: str, now: float) -> str:
        if address in self._due or len(self._due) < MOST_ADDRESSES:
            return address
        self._due = {key: due for key, due in self._due.items() if due > now}
        return address if len(self._due) < MOST_ADDRESSES else OTHERS


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "replace")).digest()
