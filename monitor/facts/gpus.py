"""Facts: the declaration of a GPU's figures, its condition and states, and why it is closed.

`monitor/facts/readings.py` declares the figures. REST, Prometheus, live values, the GPU's page,
samples, roll-ups and charts follow from these declarations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
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


# Condition of a GPU, and the faults that it counts. Unknown is None, never zero.


class Condition(StrEnum):
    """healthy: takes work · throttled: too hot or slowed down · failing: its answers or its

    memory can't be trusted · lost: not there. Only a healthy one gets new work.
    """

    HEALTHY = "healthy"
    THROTTLED = "throttled"
    FAILING = "failing"
    LOST = "lost"


class Ailment(Struct, frozen=True):
    """A problem of a GPU. `code` is a stable name; `text` contains no changing number.

    `condition` is the effect on the GPU; HEALTHY = worth knowing, work goes on.
    """

    code: str
    condition: Condition
    text: str

    @property
    def title(self) -> str:
        """The code in words: "Repair pending", "ECC uncorrected", "XID 79"."""
        words = self.code.split("_")
        first = words[0] if words[0] in ("ECC", "XID") else words[0].capitalize()
        return " ".join([first, *(word.lower() for word in words[1:])])


class Xid(Struct, frozen=True):
    """An error that the driver reported of a GPU, by NVIDIA's number."""

    gpu_uuid: str
    code: int


class HealthReading(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Counters of faults and slow-downs of one GPU since its driver was loaded.

    A probe leaves everything from `hot` on unset. These fields are the memory of the health check:
    they are stored with the snapshot, so that the next process continues from them.
    """

    gpu_uuid: str
    clock_reasons: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    retired_pages: int | None = None
    retired_pending: bool | None = None
    remapped_corrected: int | None = None
    remapped_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    hot: bool | None = None
    # The highest temperature since the GPU became too hot.
    hottest_c: float | None = None
    slow_since: datetime | None = None
    slow_at: datetime | None = None
    spinning_since: datetime | None = None
    over_power_since: datetime | None = None
    # Since when a call of the driver about it has failed at each sweep.
    calls_failing_since: datetime | None = None
    # (XID, time) of the XIDs that keep the GPU closed.
    xids: tuple[tuple[int, datetime], ...] = ()
    ailments: tuple[Ailment, ...] = ()
    # Codes of the ailments that were reported although the GPU works; kept while it is away.
    reported: tuple[str, ...] | None = None

    def has(self, code: str) -> bool:
        return any(ailment.code == code for ailment in self.ailments)


class GpuState(StrEnum):
    """idle: not in use · external: used or locked outside gpucoord only ·

    booting_script, booting_llm: claimed by a job or model without a process on it yet ·
    script_busy: a job runs · llm_ready, llm_busy: a model is idle, serves ·
    cooling: the job has ended, its memory is not free yet · throttled: by its condition ·
    paused: by an operator · failing: answers with errors · lost: does not answer.
    """

    IDLE = "idle"
    BOOTING_LLM = "booting_llm"
    BOOTING_SCRIPT = "booting_script"
    LLM_READY = "llm_ready"
    LLM_BUSY = "llm_busy"
    SCRIPT_BUSY = "script_busy"
    COOLING = "cooling"
    THROTTLED = "throttled"
    PAUSED = "paused"
    EXTERNAL = "external"
    FAILING = "failing"
    LOST = "lost"


class IllegalGpuTransition(Exception):
    """A transition that the table does not allow: a fault of gpucoord, not of the GPU."""


# Imposed from outside, at any time and in any state.
IMPOSED = frozenset({GpuState.LOST, GpuState.FAILING, GpuState.PAUSED, GpuState.THROTTLED})
_FREE = {GpuState.IDLE, GpuState.EXTERNAL}
_BOOTS = {GpuState.BOOTING_LLM, GpuState.BOOTING_SCRIPT}
_MODEL = {GpuState.LLM_READY, GpuState.LLM_BUSY}
# A GPU with a job passes through booting_* and cooling. Of several jobs on a GPU, one that boots
# or works takes precedence over an idle model.
_WORK: dict[GpuState, set[GpuState]] = {
    GpuState.IDLE: {GpuState.EXTERNAL, GpuState.COOLING, *_BOOTS},
    GpuState.EXTERNAL: {GpuState.IDLE, GpuState.COOLING, *_BOOTS},
    GpuState.BOOTING_SCRIPT: {
        GpuState.SCRIPT_BUSY, GpuState.BOOTING_LLM, GpuState.COOLING, *_MODEL, *_FREE
    },
    GpuState.BOOTING_LLM: {GpuState.BOOTING_SCRIPT, GpuState.COOLING, *_MODEL, *_FREE},
    GpuState.SCRIPT_BUSY: {GpuState.COOLING, *_BOOTS, *_MODEL},
    # A model that goes to sleep leaves an idle GPU.
    GpuState.LLM_READY: {GpuState.LLM_BUSY, GpuState.COOLING, *_FREE, *_BOOTS},
    GpuState.LLM_BUSY: {GpuState.LLM_READY, GpuState.COOLING, *_FREE, *_BOOTS},
    GpuState.COOLING: {*_FREE, *_BOOTS},
}  # fmt: skip
TRANSITIONS: dict[GpuState, frozenset[GpuState]] = {
    **{old: frozenset(new | IMPOSED) for old, new in _WORK.items()},
    **{old: frozenset(set(GpuState) - {old}) for old in IMPOSED},
}


def check_transition(old: GpuState | None, new: GpuState) -> None:
    """Raise IllegalGpuTransition unless a GPU in `old` may be in `new` next. None = it is new."""
    if old is not None and old is not new and new not in TRANSITIONS[old]:
        raise IllegalGpuTransition(f"a GPU that is {old} can't be {new} next")


class ClosureKind(StrEnum):
    """paused: by an operator; running jobs may end · quarantined: memory was not given back ·

    lock_file: its lock file can't be used · unknown: a row with a kind that this version does
    not have.
    """

    PAUSED = "paused"
    QUARANTINED = "quarantined"
    LOCK_FILE = "lock_file"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> ClosureKind:
        return cls.UNKNOWN


class ClosureFact(Struct, frozen=True, kw_only=True):
    """One reason why a GPU takes no new work. `by`: the operator; "" = gpucoord itself.

    `pid` is the process of an ended job that still holds memory there.
    """

    gpu_uuid: str
    kind: ClosureKind
    since: datetime
    reason: str = ""
    by: str = ""
    job_ref: str = ""
    pid: int | None = None
    memory_bytes: int | None = None

    @property
    def text(self) -> str:
        """Why, for a card: "Paused by olga: New fan." """
        if self.kind is ClosureKind.PAUSED:
            return f"Paused by {self.by}{f': {self.reason}' if self.reason else '.'}"
        if self.kind is ClosureKind.LOCK_FILE:
            return self.reason
        if self.kind is ClosureKind.UNKNOWN:
            return "Closed for a reason that this version of gpucoord does not know."
        held = "memory" if self.memory_bytes is None else f"{self.memory_bytes / 1024**3:.1f} GiB"
        whose = f"of job {self.job_ref} (pid {self.pid})"
        return f"In quarantine: the job has ended, but {held} {whose} are not back."
