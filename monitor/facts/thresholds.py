"""Declaration of a threshold: a field of a policy's dataclass with its label, help and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any


def threshold(
    default: Any,
    label: str,
    help: str = "",
    *,
    unit: str = "",
    ge: float | None = None,
    le: float | None = None,
    choices: Sequence[str] = (),
) -> Any:
    """`ge` and `le` limit a number, or each number of a tuple; `choices` the texts of a tuple."""
    metadata = {
        "label": label, "help": help, "unit": unit, "ge": ge, "le": le, "choices": tuple(choices)
    }  # fmt: skip
    return field(default=default, metadata=metadata)


def percent(default: float, label: str, help: str = "") -> Any:
    return threshold(default, label, help, unit="%", ge=0, le=100)
