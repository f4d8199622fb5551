"""All calls to NVML: which are supported, how many failed, what they cost, and their answers.

A reader of an answer raises if an answer has another form than documented: the call then counts as
refused. Bounds of numbers are in `monitor/facts/gpus.py`, except where a number would end a
loop.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.readings import CallCost, ComputeMode, GpuReading, Health

# NVML's error codes in words, and their effect on a value, a GPU or the driver.


NOT_FOUND, INSUFFICIENT_SIZE, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 6, 7, 12, 13
RESET_REQUIRED = 16

# The value is unavailable (not supported, no permission, no data, other struct version); it is
# unknown, and the GPU is healthy.
NO_ANSWER = frozenset({2, 3, 4, 6, 7, 13, 14, 21, 22, 24, 25, 26})
# The device or driver does not have this value; asking again gives the same answer. Every other
# refusal may be over at the next sweep.
LASTING = frozenset({3, 13})
# There is nothing to tell now, or the list has grown meanwhile: no failure.
NO_VALUE = frozenset({NOT_FOUND, INSUFFICIENT_SIZE})
# Codes of our own: an answer that cannot be read, a device that is left out after a hang.
UNREADABLE, LEFT_OUT = -1, -2
# The library must be initialised again before its next use.
LIBRARY = frozenset({1, 9, 12, 18})


# A call of this duration hangs. Initialising the driver is slow unless it stays loaded.
HUNG_S, HUNG_STARTING_S = 6.0, 30.0
STARTING = ("nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandleByIndex")


def patience_s(call: str) -> float:
    """A call that takes longer hangs."""
    return HUNG_STARTING_S if call in STARTING else HUNG_S


class Fault(Struct, frozen=True):
    """The problem, the remedy, and the health of a GPU that returns this error."""

    problem: str
    remedy: str
    health: Health = Health.FAILING


FAULTS = {
    1: Fault("NVML is not initialised.", "gpucoord initialises it again by itself."),
    4: Fault(
        "This account may not use the NVIDIA driver.",
        "Let the account that runs gpucoord read and write /dev/nvidia* (often the group video).",
    ),
    9: Fault(
        "The NVIDIA driver is installed, but its kernel module is not loaded.",
        "Run `nvidia-smi` as root; if it fails too, try `modprobe nvidia` or restart the machine.",
    ),
    10: Fault("The GPU did not answer in time.", "If it persists, restart the machine."),
    12: Fault(
        "No NVIDIA driver was found on this machine.",
        "Install the NVIDIA driver (Debian: `apt install nvidia-driver`; Ubuntu: "
        "`ubuntu-drivers install`; others: nvidia.com/drivers) and see that `nvidia-smi` lists "
        "the GPUs. A container needs the option `--gpus all`. gpucoord looks again each minute; "
        "jobs without a GPU run meanwhile.",
    ),
    15: Fault(
        "The GPU has fallen off the bus.",
        "Look for NVRM lines in `dmesg`; often only a restart of the machine brings it back.",
        Health.LOST,
    ),
    16: Fault(
        "The GPU must be reset before it works again.",
        "End its processes and run `nvidia-smi --gpu-reset` as root, or restart the machine.",
    ),
    17: Fault(
        "The operating system blocks access to the GPU.", "Check the access to /dev/nvidia*."
    ),
    18: Fault(
        "The NVIDIA driver was updated, but the old kernel module is still loaded.",
        "Restart the machine (or unload and load the nvidia modules once nothing uses them).",
    ),
    28: Fault("The GPU is not there any more.", "Check its power and its seat.", Health.LOST),
    999: Fault(
        "The NVIDIA driver answers “Unknown Error”.",
        "In a container that lost its GPUs (after `systemctl daemon-reload`) restart the "
        "container; else look for NVRM lines in `dmesg`.",
    ),
}
RESET = FAULTS[RESET_REQUIRED]


def fault(code: int, text: str) -> Fault:
    """The fault of `code`; `text` is NVML's own text, for rare codes."""
    if code == UNREADABLE:
        return Fault(f"The NVIDIA driver gives {text}.", "Reload or update the NVIDIA driver.")
    description = FAULTS.get(code)
    return description or Fault(
        f"The NVIDIA driver answers: {text}.", "Look at `dmesg` for its reason."
    )


def broken(facts: GpuReading, fault: Fault | None) -> GpuReading:
    """A GPU of which only the fault is known."""
    if fault is None:
        return facts
    return replace(facts, health=fault.health, problem=f"{fault.problem} {fault.remedy}")


def hung(call: str) -> Fault:
    """The fault of a device of which `call` did not come back."""
    problem = f"{call} did not come back, so this GPU is not read for some time."
    return Fault(problem, "Look for NVRM lines in `dmesg`; often only a restart helps.")


class CallRefused(Exception):
    """`call` gave no usable answer; `code` says why: NVML's, or one of our own."""

    def __init__(self, code: int, text: str, call: str = "") -> None:
        super().__init__(text)
        self.fault = fault(code, text)
        self.code = code
        self.call = call

    @classmethod
    def unreadable(cls, call: str, error: Exception) -> CallRefused:
        """Any error that is not NVML's, such as that of a text that is not UTF-8."""
        text = f"an answer that cannot be read ({type(error).__name__})"
        return cls(UNREADABLE, f"{text} to {call}" if call else text, call)

    @classmethod
    def left_out(cls, call: str) -> CallRefused:
        """A device is not called because `call` did not come back."""
        refused = cls(LEFT_OUT, "the call did not come back", call)
        refused.fault = hung(call)
        return refused

    def __str__(self) -> str:
        return f"{self.call}: {super().__str__()}" if self.call else super().__str__()

    @property
    def is_lasting(self) -> bool:
        """Whether the device or driver does not have the value at all."""
        return self.code in LASTING

    @property
    def is_fatal(self) -> bool:
        """Whether no further call can succeed for the library or for this GPU."""
        return self.code in LIBRARY or self.fault.health is Health.LOST


# Number of durations kept for each kind of call.
_KEPT = 200
# Maximum share of the sweep interval for one kind of call; checked every JUDGED_EVERY sweeps.
SHARE, JUDGED_EVERY = 0.05, 5
MOST_SKIPPED = 10


class _Times:
    """The times of one kind of call, in seconds."""

    def __init__(self) -> None:
        self.newest: deque[float] = deque(maxlen=_KEPT)
        self.count = self.errors = 0
        self.every = 1

    def add(self, seconds: float) -> None:
        self.newest.append(seconds)
        self.count += 1


class CallTimes:
    """Durations of calls by kind. Slow kinds of calls are made in fewer sweeps."""

    def __init__(self) -> None:
        self._times: dict[str, _Times] = {}
        self._sweeps = 0
        self._begun_at: datetime | None = None
        self._paced: set[str] = set()
        self.costs: tuple[CallCost, ...] = ()

    def add(self, name: str, seconds: float, is_error: bool) -> None:
        times = self._times.get(name)
        if times is None:
            times = self._times[name] = _Times()
        times.add(seconds)
        times.errors += is_error

    def is_due(self, name: str) -> bool:
        """Whether this kind of call is made in this sweep."""
        times = self._times.get(name)
        return times is None or self._sweeps % times.every == 0

    def pace(self, name: str) -> None:
        """Allow leaving out this kind of call; its last answer is then reused."""
        self._paced.add(name)

    def begin(self, now: datetime, gpus: int) -> None:
        """Begin a sweep over `gpus` GPUs."""
        interval_s = (now - self._begun_at).total_seconds() if self._begun_at else 0.0
        self._begun_at = now
        self._sweeps += 1
        if self._sweeps % JUDGED_EVERY != 1:
            return
        for name in self._paced if interval_s > 0 else ():
            takes = _median(self._times[name].newest) * gpus
            sweeps = math.ceil(takes / (SHARE * interval_s))
            self._times[name].every = min(MOST_SKIPPED, max(1, sweeps))
        self.costs = tuple(_cost(name, times) for name, times in sorted(self._times.items()))

    def resume(self, costs: Iterable[CallCost]) -> None:
        """Continue the counts of another process."""
        for cost in costs:
            times = self._times.setdefault(cost.call, _Times())
            times.count += cost.count
            times.errors += cost.errors


def _median(times: Iterable[float]) -> float:
    ordered = sorted(times)
    return ordered[len(ordered) // 2] if ordered else 0.0


def _cost(name: str, times: _Times) -> CallCost:
    ordered = sorted(times.newest)
    at = len(ordered)
    return CallCost(
        call=name,
        count=times.count,
        errors=times.errors,
        every=times.every,
        p50_ms=round(1e3 * ordered[at // 2], 4) if at else 0.0,
        p99_ms=round(1e3 * ordered[min(at - 1, math.ceil(0.99 * at) - 1)], 4) if at else 0.0,
    )


class Calls:
    """`call(name, *args)` asks NVML or raises CallRefused.

    One thread calls, others may read the counters. `device`: the GPU that the calls are about,
    "" = none. `failed`: those of its calls that failed, in words.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.asking: tuple[str, float] | None = None
        self.device = ""
        self.failed: list[str] = []
        self.query_errors = 0
        self.init_failures = 0
        self.times = CallTimes()

    def must(self, name: str, *args: Any) -> Any:
        """The answer; raises CallRefused."""
        began, failed = time.monotonic(), False
        self.asking = (name, began)
        try:
            return self._call(name, *args)
        except CallRefused as refused:
            failed = self._count(name, refused)
            raise
        finally:
            self.asking = None
            self.times.add(name, time.monotonic() - began, failed)

    def ask(self, name: str, *args: Any) -> Any:
        """The answer, or None if the call is refused while the GPU and the library live."""
        try:
            return self.must(name, *args)
        except CallRefused as refused:
            if refused.is_fatal:
                raise
            return None

    def take_counts(self) -> tuple[int, int]:
        """Return and reset the query errors and initialisation failures."""
        counts = (self.query_errors, self.init_failures)
        self.query_errors = self.init_failures = 0
        return counts

    def _count(self, name: str, refused: CallRefused) -> bool:
        """Count an error. False: the value is only unavailable on this GPU or driver."""
        if refused.code not in NO_VALUE and not refused.is_lasting:
            self.failed.append(str(refused))
        failed = name == "nvmlInit" or refused.code not in NO_ANSWER
        if name == "nvmlInit":
            self.init_failures += 1
        elif failed:
            self.query_errors += 1
        return failed


Key = tuple[Any, ...]
# After so many sweeps the newer form of a call is no longer made.
MOST_FALLBACKS = 3


class Kept:
    """The memory of one GPU until NVML is opened again.

    `absent`: calls that the GPU or its driver does not support. `last`: the latest answers, which
    replace slow calls that are left out of a sweep. A refusal for another reason is not remembered.
    """

    def __init__(self) -> None:
        self.absent: set[Key] = set()
        self.last: dict[Key, Any] = {}
        # Sweeps in which only the older form of a call was answered.
        self.fallbacks = 0


class Answers:
    """The answers of one GPU in one sweep.

    `some`: any call succeeded. `fault`: the first fault.
    """

    def __init__(self, calls: Calls, handle: Any, kept: Kept) -> None:
        self._calls = calls
        self._handle = handle
        self._kept = kept
        self.some = False
        self.fault: Fault | None = None

    @property
    def is_bad(self) -> bool:
        """All calls failed, or the GPU requires a reset."""
        return self.fault is not None and (not self.some or self.fault is RESET)

    def paced(self, name: str, *args: Any) -> Any:
        """As `of`, but a slow call is left out of some sweeps."""
        key = (name, *args)
        self._calls.times.pace(name)
        last = self._kept.last
        if key in last and not self._calls.times.is_due(name):
            self.some = True
            return last[key]
        is_answered, answer = self.tried(*key)
        if is_answered:
            last[key] = answer
        else:
            last.pop(key, None)
        return answer

    def either(self, name: str, *newer: Any) -> Any:
        """The answer of the call with the arguments of newer drivers, or else without them.

        The failure of the newer call counts only if it has worked before, or if both fail.
        """
        key = (name, *newer)
        before = self.fault, len(self._calls.failed)
        answer = self.of(*key)
        if answer is not None:
            self._kept.last[key] = answer
        if answer is not None or key in self._kept.last:
            return answer
        answer = self.of(name)
        if answer is not None:
            self._kept.fallbacks += 1
            if self._kept.fallbacks >= MOST_FALLBACKS:
                # WSL answers the newer call with "unknown error", always.
                self._kept.absent.add(key)
            self.fault = before[0]
            del self._calls.failed[before[1] :]
        return answer

    def of(self, name: str, *args: Any) -> Any:
        """The answer; None if the call is refused. Raises CallRefused if the GPU is gone."""
        return self.tried(name, *args)[1]

    def tried(self, name: str, *args: Any) -> tuple[bool, Any]:
        """As `of`, and whether the call was answered, if only by "not supported"."""
        key = (name, *args)
        if key in self._kept.absent:
            return True, None
        try:
            answer = self._calls.must(name, self._handle, *args)
        except CallRefused as refused:
            if refused.is_fatal:
                raise
            if refused.is_lasting:
                self._kept.absent.add(key)
                return True, None
            if refused.code not in NO_ANSWER:
                self.fault = self.fault or refused.fault
            return False, None
        self.some = True
        return True, answer


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
