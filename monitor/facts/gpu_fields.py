"""Facts: the declaration of a measured figure of a GPU: its unit, bounds, and where it appears.

`monitor/facts/readings.py` declares the figures. REST, Prometheus, live values, the GPU's page,
samples, roll-ups and charts follow from these declarations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, get_type_hints

from msgspec import Struct

from monitor.facts.formats import GIB, UNKNOWN, gib


class Gauge(Struct, frozen=True):
    """A Prometheus gauge. `factor`: makes its unit of that of the reading."""

    name: str
    help: str
    factor: float = 1.0


class Rollup(Struct, frozen=True):
    """Columns of minutes and hours: maximum, sum and known seconds. None: not stored."""

    greatest: str
    total: str | None = None
    known_s: str | None = None


class Meter(Struct, frozen=True):
    """A bar on the page of the GPU, and a value in live frames.

    top: of the bar, in the unit of the reading, or the name of the figure that has it.
    is_limit: the top is also a line in the chart.
    in_row: shown in the GPU's row, so not repeated in the detail below; `word`: before it there.
    """

    top: float | str
    is_limit: bool = False
    in_row: bool = False
    word: str = ""

    def top_of(self, gpu: object) -> float | None:
        """In the unit of the reading; None = unknown."""
        return getattr(gpu, self.top) if isinstance(self.top, str) else self.top


class GpuField(Struct, frozen=True, kw_only=True):
    """A measured figure of a GPU. Unknown is None, at every door.

    unit: of the reading; bytes are shown as GiB. bounds: both included; other values are faults.
    in_rest: part of REST. is_sampled: stored each second.
    """

    name: str
    label: str
    unit: str
    kind: type = float
    bounds: tuple[float, float]
    in_rest: bool = True
    gauge: Gauge | None = None
    meter: Meter | None = None
    is_sampled: bool = False
    rollup: Rollup | None = None

    @property
    def unit_shown(self) -> str:
        return "GiB" if self.unit == "bytes" else self.unit

    @property
    def scale(self) -> int:
        """Units of the reading in a unit as shown."""
        return GIB if self.unit == "bytes" else 1

    @property
    def digits(self) -> int:
        """3: three significant digits are shown; 0: a whole number."""
        return 3 if self.unit == "bytes" else 0

    def shown(self, value: float | None) -> float | None:
        """Rounded, in the unit as shown."""
        if value is None:
            return None
        return float(f"{value / self.scale:.3g}") if self.digits else round(value)

    def text(self, value: float | None) -> str:
        """With its unit."""
        if value is None:
            return UNKNOWN
        return gib(value) if self.unit == "bytes" else f"{value:.0f} {self.unit}"

    def of(self, reading: object) -> float | None:
        value: float | None = getattr(reading, self.name)
        return value


def figure(label: str, unit: str, **facts: Any) -> partial[GpuField]:
    """Beside the type of an attribute of GpuReading: it is measured; the others are facts of it."""
    return partial(GpuField, label=label, unit=unit, **facts)


def declared(reading: type) -> Iterator[GpuField]:
    """The figures of a class of readings, in order."""
    for name, hint in get_type_hints(reading, include_extras=True).items():
        for made in getattr(hint, "__metadata__", ()):
            yield made(name=name)


# Bounds of all readings. A value outside is a fault of the reading, so it is unknown.
#
# By the name of a field, both ends included. A field that is not here is bounded by what the
# database and JSON hold. Drivers answer 255, 2^32 − 1 or 2^64 − 1 where they have no value.


# 16 TiB: memory of a GPU, or of a process on it.
MOST_MEMORY = 2**44
# The memory of a machine: 1 PiB.
_MOST_HOST_MEMORY = 2**50
# W: the largest module has about 1.4 kW.
MOST_POWER = 3000.0
PERCENT = (0.0, 100.0)
_GPU_MEMORY = (0, MOST_MEMORY)
_HOST_MEMORY = (0, _MOST_HOST_MEMORY)
# Counters of faults: more is a wrong answer, and each of them closes or marks a GPU.
_FAULTS = (0, 2**31 - 1)
_PAGES = (0, 2**16 - 1)

BOUNDS: Mapping[str, tuple[float, float]] = {
    # GPU: the figures of GPU_FIELDS have theirs there.
    "index": (0, 2**15 - 1),
    "sm_pct": PERCENT,
    "encoder_pct": PERCENT,
    "max_sm_clock_mhz": (1, 10_000),
    "cores": (1, 10**6),
    # mJ: 3 kW for 20 years.
    "energy_mj": (0, 2 * 10**15),
    # MIG instances and processes; of a host, see HOST_BOUNDS.
    "memory_total_bytes": (1, MOST_MEMORY),
    "memory_used_bytes": _GPU_MEMORY,
    "memory_bytes": _GPU_MEMORY,
    "peak_memory_bytes": _GPU_MEMORY,
    "instance": (0, 2**15 - 1),
    "pid": (1, 2**31 - 1),
    # Health. NVML has 9 reasons; other bits are no reasons.
    "clock_reasons": (0, 0xFFFF),
    "ecc_corrected": (0, 10**12),
    "ecc_uncorrected": _FAULTS,
    "retired_pages": _PAGES,
    "remapped_corrected": _PAGES,
    "remapped_uncorrected": _PAGES,
    "code": (1, 2**16 - 1),
}

HOST_BOUNDS: Mapping[str, tuple[float, float]] = {
    "cpu_count": (1, 2**16),
    "cpu_pct": PERCENT,
    "load_1": (0.0, 10.0**6),
    "load_5": (0.0, 10.0**6),
    "load_15": (0.0, 10.0**6),
    "memory_total_bytes": (1, _MOST_HOST_MEMORY),
    "memory_available_bytes": _HOST_MEMORY,
    "swap_total_bytes": _HOST_MEMORY,
    "swap_used_bytes": _HOST_MEMORY,
    "cpu_some_pct": PERCENT,
    "memory_some_pct": PERCENT,
    "memory_full_pct": PERCENT,
    "io_some_pct": PERCENT,
    "io_full_pct": PERCENT,
    # Seconds and bytes since the start of the machine.
    "cpu_busy_s": (0.0, 1e13),
    "cpu_total_s": (0.0, 1e13),
}

# Peaks exceed the power limit, but never by this factor.
MOST_OVER_LIMIT = 3.0
# A counter of energy that grows faster than this is a wrong answer, or another counter.
MOST_JOULES_PER_S = MOST_POWER
# A reading that differs by more from the sweep before acts only when the next sweep confirms it.
JUMPS: Mapping[str, float] = {"temperature_c": 30.0}
