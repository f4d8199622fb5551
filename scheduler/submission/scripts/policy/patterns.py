"""Policy: patterns of a script's schema, matched so that no text of a user takes long.

Python tries the ways in which a pattern can match one after the other, and their number can grow
exponentially with the text. So their number is estimated first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from math import inf, prod
from typing import Any

# About a fifth of a second.
MOST_WAYS = 10_000_000.0
# A pattern that takes too long for a text of this length cannot be used.
SHORT_TEXT = 40


def problem_of(pattern: str) -> str:
    """Why the pattern can't be used; "" = it can."""
    try:
        is_bounded = ways(pattern, SHORT_TEXT) <= MOST_WAYS
    except (re.error, RecursionError, OverflowError):
        return f"{pattern[:100]!r} is no regular expression."
    if is_bounded:
        return ""
    return (
        f"The pattern {pattern[:100]!r} can take very long on a short text."
        " Avoid repetitions inside of repetitions."
    )


def is_too_long(pattern: str, text: str) -> bool:
    """Whether matching the text could take too long."""
    return ways(pattern, len(text)) > MOST_WAYS


def ways(pattern: str, length: int) -> float:
    """An upper estimate of the ways that are tried on a text of this length. Raises re.error."""
    parts = _parsed(pattern)
    is_anchored = bool(parts) and str(parts[0][1]).startswith("AT_BEGINNING")
    return (1 if is_anchored else length + 1) * _of_all(parts, length)


@lru_cache(maxsize=256)
def _parsed(pattern: str) -> Any:
    # The parser of the standard library has no public name.
    return list(re._parser.parse(pattern))  # type: ignore[attr-defined]


def _of_all(parts: Iterable[Any], length: int) -> float:
    return prod((_of_one(str(kind), value, length) for kind, value in parts), start=1.0)


def _of_one(kind: str, value: Any, length: int) -> float:
    if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        least, longest, body = int(value[0]), min(int(value[1]), length), value[2]
        return (max(0, longest - least) + 1) * _power(_of_all(body, length), longest)
    if kind == "BRANCH":
        return sum(_of_all(branch, length) for branch in value[1])
    if kind == "SUBPATTERN":
        return _of_all(value[-1], length)
    if kind in ("ASSERT", "ASSERT_NOT"):
        return _of_all(value[1], length)
    if kind == "ATOMIC_GROUP":
        return _of_all(value, length)
    if kind == "GROUPREF_EXISTS":
        return sum(_of_all(part, length) for part in value[1:] if part is not None)
    return 1.0


def _power(base: float, exponent: int) -> float:
    try:
        return float(base**exponent)
    except OverflowError:
        return inf
