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
_PERCENT = (0.0, 100.0)
_POWER = (0.0, MOST_POWER)
_GPU_MEMORY = (0, MOST_MEMORY)
_HOST_MEMORY = (0, _MOST_HOST_MEMORY)
# Counters of faults: more is a wrong answer, and each of them closes or marks a GPU.
_FAULTS = (0, 2**31 - 1)
_PAGES = (0, 2**16 - 1)

BOUNDS: Mapping[str, tuple[float, float]] = {
    # GPU
    "index": (0, 2**15 - 1),
    "utilization_pct": _PERCENT,
    "memory_utilization_pct": _PERCENT,
    "sm_pct": _PERCENT,
    "encoder_pct": _PERCENT,
    "power_w": _POWER,
    "power_limit_w": (1.0, MOST_POWER),
    # °C: the hardware switches off below 120. Sleeping sensors answer −256 or 127.
    "temperature_c": (-55.0, 120.0),
    # MHz
    "sm_clock_mhz": (0, 10_000),
    "max_sm_clock_mhz": (1, 10_000),
    "memory_clock_mhz": (0, 50_000),
    "performance_state": (0, 15),
    "cores": (1, 10**6),
    # mJ: 3 kW for 20 years.
    "energy_mj": (0, 2 * 10**15),
    # GPUs and their MIG instances; of a host, see HOST_BOUNDS.
    "memory_total_bytes": (1, MOST_MEMORY),
    "memory_used_bytes": _GPU_MEMORY,
    "memory_reserved_bytes": _GPU_MEMORY,
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
    "cpu_pct": _PERCENT,
    "load_1": (0.0, 10.0**6),
    "load_5": (0.0, 10.0**6),
    "load_15": (0.0, 10.0**6),
    "memory_total_bytes": (1, _MOST_HOST_MEMORY),
    "memory_available_bytes": _HOST_MEMORY,
    "swap_total_bytes": _HOST_MEMORY,
    "swap_used_bytes": _HOST_MEMORY,
    "cpu_some_pct": _PERCENT,
    "memory_some_pct": _PERCENT,
    "memory_full_pct": _PERCENT,
    "io_some_pct": _PERCENT,
    "io_full_pct": _PERCENT,
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
