"""Bounds of all readings. A value outside is a fault of the reading, so it is unknown.

By the name of a field, both ends included. A field that is not here is bounded by what the database
and JSON hold. Drivers answer 255, 2^32 − 1 or 2^64 − 1 where they have no value.
"""

from __future__ import annotations

from collections.abc import Mapping

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
