"""NVML's values as ours: text, percent, watts; what makes no sense is unknown."""

from __future__ import annotations

from monitor.readings import ComputeMode

# NVML's numbers of the generations.
ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}


def text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def percent(value: int) -> float | None:
    return float(value) if 0 <= value <= 100 else None


def watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def compute_mode(value: int | None) -> ComputeMode | None:
    """1 is what drivers of old called exclusive to a thread."""
    if value == 2:
        return ComputeMode.PROHIBITED
    return ComputeMode.EXCLUSIVE if value in {1, 3} else None


def state(value: int | None) -> int | None:
    return value if value is not None and value <= 15 else None


def number(value: int | None) -> float | None:
    return None if value is None else float(value)


def architecture(value: int | None) -> str | None:
    return None if value is None else ARCHITECTURES.get(value)
