"""The answers of the NVML functions, as plain values.

A reader raises if an answer has another form than documented: the call then counts as refused.
Bounds of numbers are in `monitor/facts/gpu_fields.py`, except where a number would end a loop.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from monitor.facts.readings import ComputeMode

# NVML counts at most this many devices; more is no number of devices.
MOST_DEVICES = 1024
_NO_INSTANCE = 0xFFFFFFFF
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


class Memory(NamedTuple):
    """Bytes. reserved: None = counted as used."""

    total: int
    used: int
    reserved: int | None


class Entry(NamedTuple):
    """A line of a list of processes. instance: the MIG instance that the process is in."""

    pid: int
    memory_bytes: int | None
    instance: int | None


class Sample(NamedTuple):
    """The use of a process, in percent, at a time of the driver's clock."""

    pid: int
    at_us: int
    sm_pct: int
    encoder_pct: int


class Account(NamedTuple):
    """The driver's account of a process: sums since its start."""

    start_us: int
    samples: int
    sum_pct: int
    is_running: bool
    lived_s: float
    peak_memory_bytes: int


def text(value: str | bytes) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, str):
        return value
    raise TypeError("the answer is not a text")


def uuid(value: str | bytes) -> str:
    """A UUID names the GPU in the database and to CUDA, so it is used as it is or not at all."""
    name = value.decode("ascii") if isinstance(value, bytes) else text(value)
    if not name or not name.isascii() or not name.isprintable():
        raise ValueError("the answer is not a UUID")
    return name


def watts(milliwatts: Any) -> float:
    return int(milliwatts) / 1000


def number(value: Any) -> float:
    return float(int(value))


def compute_mode(value: Any) -> ComputeMode | None:
    """1 is what drivers of old called exclusive to a thread."""
    if value == 2:
        return ComputeMode.PROHIBITED
    return ComputeMode.EXCLUSIVE if int(value) in {1, 3} else None


def architecture(value: Any) -> str | None:
    return ARCHITECTURES.get(int(value))


def _count(value: Any) -> int:
    count = int(value)
    if not 0 <= count <= MOST_DEVICES:
        raise ValueError(f"{count} is no number of devices")
    return count


def _capability(value: Sequence[Any]) -> str:
    major, minor = (int(part) for part in value)
    if not (0 < major < 100 and 0 <= minor < 100):
        raise ValueError(f"{major}.{minor} is no compute capability")
    return f"{major}.{minor}"


def _pci_id(info: Any) -> str:
    # The binding decodes strictly when the attribute is read.
    if isinstance(info, ctypes.Structure):
        return text(ctypes.Structure.__getattribute__(info, "busId"))
    return text(info.busId)


def _memory(info: Any) -> Memory:
    reserved = getattr(info, "reserved", None)
    return Memory(int(info.total), int(info.used), None if reserved is None else int(reserved))


def _rates(rates: Any) -> tuple[float, float]:
    return number(rates.gpu), number(rates.memory)


def _entries(entries: Sequence[Any]) -> list[Entry]:
    return [_entry(entry) for entry in entries]


def _entry(entry: Any) -> Entry:
    size, instance = entry.usedGpuMemory, getattr(entry, "gpuInstanceId", None)
    return Entry(
        int(entry.pid),
        None if size is None else int(size),
        None if instance is None or instance == _NO_INSTANCE else int(instance),
    )


def _samples(samples: Sequence[Any]) -> list[Sample]:
    return [
        Sample(int(s.pid), int(s.timeStamp), int(s.smUtil), int(getattr(s, "encUtil", 0)))
        for s in samples
    ]


def _account(stats: Any) -> Account:
    return Account(
        start_us=int(stats.startTime),
        samples=int(stats.sampleCount),
        sum_pct=int(stats.sumGpuUtil),
        is_running=bool(stats.isRunning),
        lived_s=int(stats.time) / 1000,
        peak_memory_bytes=int(stats.maxMemoryUsage),
    )


def _integers(values: Sequence[Any]) -> tuple[int, ...]:
    if isinstance(values, str | bytes):
        raise TypeError("the answer is not a list of numbers")
    return tuple(int(value) for value in values)


def _remapped(rows: Sequence[Any]) -> tuple[int, ...]:
    numbers = _integers(rows)
    if len(numbers) != 4:
        raise ValueError("the answer has not four numbers")
    return numbers


def _length(pages: Sequence[Any]) -> int:
    if isinstance(pages, str | bytes):
        raise TypeError("the answer is not a list of pages")
    return len(pages)


def _event(event: Any) -> tuple[Any, int, int]:
    return event.device, int(event.eventType), int(event.eventData)


READERS: Mapping[str, Callable[[Any], Any]] = {
    "nvmlDeviceGetCount": _count,
    "nvmlSystemGetDriverVersion": text,
    "nvmlSystemGetCudaDriverVersion": int,
    "nvmlDeviceGetUUID": uuid,
    "nvmlDeviceGetName": text,
    "nvmlDeviceGetPciInfo": _pci_id,
    "nvmlDeviceGetCudaComputeCapability": _capability,
    "nvmlDeviceGetArchitecture": architecture,
    "nvmlDeviceGetNumGpuCores": int,
    "nvmlDeviceGetMaxClockInfo": int,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetUtilizationRates": _rates,
    "nvmlDeviceGetPowerUsage": watts,
    "nvmlDeviceGetEnforcedPowerLimit": watts,
    "nvmlDeviceGetTemperature": number,
    "nvmlDeviceGetClockInfo": int,
    "nvmlDeviceGetPerformanceState": int,
    "nvmlDeviceGetComputeMode": compute_mode,
    "nvmlDeviceGetTotalEnergyConsumption": int,
    "nvmlDeviceGetCurrentClocksEventReasons": int,
    "nvmlDeviceGetCurrentClocksThrottleReasons": int,
    "nvmlDeviceGetTotalEccErrors": int,
    "nvmlDeviceGetRemappedRows": _remapped,
    "nvmlDeviceGetRetiredPages": _length,
    "nvmlDeviceGetRetiredPagesPendingStatus": int,
    "nvmlDeviceGetMigMode": _integers,
    "nvmlDeviceGetMaxMigDeviceCount": _count,
    "nvmlDeviceGetGpuInstanceId": int,
    "nvmlDeviceGetComputeRunningProcesses_v3": _entries,
    "nvmlDeviceGetComputeRunningProcesses_v2": _entries,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": _entries,
    "nvmlDeviceGetGraphicsRunningProcesses_v2": _entries,
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": _entries,
    "nvmlDeviceGetMPSComputeRunningProcesses_v2": _entries,
    "nvmlDeviceGetProcessesUtilizationInfo": _samples,
    "nvmlDeviceGetProcessUtilization": _samples,
    "nvmlDeviceGetAccountingMode": int,
    "nvmlDeviceGetAccountingPids": _integers,
    "nvmlDeviceGetAccountingStats_v2": _account,
    "nvmlEventSetWait_v2": _event,
}


def read(name: str, answer: Any) -> Any:
    """The answer of `name` as plain values; handles and sets of events stay as they are."""
    reader = READERS.get(name)
    return answer if reader is None else reader(answer)
