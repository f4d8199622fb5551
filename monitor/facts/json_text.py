"""JSON that other programs and users wrote."""

from __future__ import annotations

import json
from typing import Any


def parse(text: str | bytes, *, allows_nan: bool = True) -> Any:
    """The value. Raises ValueError, also for a text that is nested too deeply.

    allows_nan: whether NaN and Infinity are read, which Python writes although they are no JSON.
    """
    try:
        return json.loads(text, parse_constant=None if allows_nan else _refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
