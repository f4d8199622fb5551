"""Facts: the declaration of a measured figure of a GPU: its unit, bounds, and where it appears.

`monitor/facts/readings.py` declares the figures. REST, Prometheus, live values, the GPU's page,
samples, roll-ups and charts follow from these declarations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from monitor.facts.formats import GIB, UNKNOWN, gib

DECLARED = "figure"


@dataclass(frozen=True, slots=True)
class Gauge:
    """A Prometheus gauge. `factor`: makes its unit of that of the reading."""

    name: str
    help: str
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Rollup:
    """Columns of minutes and hours: maximum, sum and known seconds. None: not stored."""

    greatest: str
    total: str | None = None
    known_s: str | None = None


@dataclass(frozen=True, slots=True)
class Meter:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuField:
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


def figure(label: str, unit: str, **facts: Any) -> Any:
    """An attribute of GpuReading that is a measured figure; the others are facts of a GpuField."""
    return field(default=None, metadata={DECLARED: {"label": label, "unit": unit} | facts})


def declared(reading: type) -> Iterator[GpuField]:
    """The figures of a class of readings, in order."""
    for attribute in fields(reading):
        if DECLARED in attribute.metadata:
            yield GpuField(name=attribute.name, **attribute.metadata[DECLARED])
