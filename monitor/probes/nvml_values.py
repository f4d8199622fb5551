"""NVML's values as ours: text, percent, watts; what makes no sense is unknown."""

from __future__ import annotations

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


def state(value: int | None) -> int | None:
    return value if value is not None and value <= 15 else None


def number(value: int | None) -> float | None:
    return None if value is None else float(value)


def architecture(value: int | None) -> str | None:
    return None if value is None else ARCHITECTURES.get(value)
