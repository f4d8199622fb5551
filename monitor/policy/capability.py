"""What a GPU can do: its generation, and how strong it is beside others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from monitor.readings import GpuReading

# About the TFLOPS of matrix work at 16 bits that the makers' sheets give, for a ranking only.
POWERS: Mapping[str, float] = {
    "B200": 4500,
    "H200": 2500,
    "H100": 2000,
    "L40S": 733,
    "A100": 624,
    "RTX 5090": 419,
    "L40": 362,
    "RTX 4090": 330,
    "A30": 330,
    "RTX A6000": 310,
    "A40": 299,
    "A10": 250,
    "L4": 242,
    "RTX 3090": 142,
    "V100": 125,
    "T4": 65,
    "P100": 21,
}
# Matrix work at 16 bits for each unit of plain work at 32 bits, by compute capability.
_MATRIX = {"7.0": 8.0, "7.5": 8.0, "8.0": 32.0, "9.0": 30.0, "10.0": 30.0, "10.3": 30.0}
_GENERATIONS = {
    "3": "Kepler",
    "5": "Maxwell",
    "6": "Pascal",
    "7.0": "Volta",
    "7.5": "Turing",
    "8.9": "Ada Lovelace",
    "8": "Ampere",
    "9": "Hopper",
    "10": "Blackwell",
    "12": "Blackwell",
}


@dataclass(frozen=True, slots=True)
class Capability:
    """None = unknown. `power_estimated`: from cores and clock, as the model is in no table."""

    architecture: str | None
    power: float | None
    power_estimated: bool


def of(gpu: GpuReading, own: Mapping[str, float] | None = None) -> Capability:
    """What `gpu` can do; `own` are the ranks that the settings give, which win."""
    known = rank(gpu.name or "", {**POWERS, **(own or {})})
    power = known if known is not None else estimate(gpu)
    return Capability(architecture(gpu), power, known is None and power is not None)


def rank(name: str, table: Mapping[str, float]) -> float | None:
    """The power of the longest entry whose words all stand in the name, as words of their own."""
    words = set(_words(name))
    fitting = [key for key in table if _words(key) and words.issuperset(_words(key))]
    return table[max(fitting, key=lambda key: (len(_words(key)), len(key)))] if fitting else None


def estimate(gpu: GpuReading) -> float | None:
    """From cores and clock: two operations a tick, and what its generation does for matrices."""
    if not gpu.cores or not gpu.max_sm_clock_mhz:
        return None
    plain_tflops = 2 * gpu.cores * gpu.max_sm_clock_mhz / 1e6
    return float(f"{plain_tflops * _matrix(gpu.compute_capability or ''):.2g}")


def architecture(gpu: GpuReading) -> str | None:
    """The generation's name: the driver's, else by compute capability."""
    cc = gpu.compute_capability or ""
    return gpu.architecture or _GENERATIONS.get(cc) or _GENERATIONS.get(cc.partition(".")[0])


def _matrix(cc: str) -> float:
    """GeForce and workstation GPUs since Ampere do four; before Volta there were no such units."""
    major = cc.partition(".")[0]
    if major.isdigit() and int(major) < 7:
        return 1.0
    return _MATRIX.get(cc, 4.0)


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.casefold())
