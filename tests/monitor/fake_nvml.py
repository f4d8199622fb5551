"""A small NVML at the boundary of pynvml's functions; the real module's errors and constants."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from tests.monitor import driver_samples
from tests.monitor.driver_samples import Work

GIB = 1024**3
Lines = list[tuple[int, int | None]]


class Misuse(BaseException):
    """A call that no driver forgives. The probe takes any Exception for an answer of the driver."""


@dataclass
class FakeInstance:
    """A MIG instance; it is asked like a GPU."""

    uuid: str
    number: int
    used: int = 2 * GIB
    total: int = 20 * GIB
    name: str = "NVIDIA A100 MIG 2g.20gb"
    compute: Lines = field(default_factory=list)
    graphics: Lines = field(default_factory=list)
    mps: Lines = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    reserved: int = 0
    odd: dict[str, Any] = field(default_factory=dict)


@dataclass
class FakeGpu:
    """One GPU. `errors`: {function: NVML code} that its calls answer with.

    `work` is what processes do; its utilisation follows where there is some. `answers`: how the
    calls for processes' shares answer: "ring", "mean", or "empty" as on GPUs they don't know.
    `lives`: {pid: (start, end or None)} in the driver's seconds, where accounting is on.
    """

    uuid: str
    name: str | bytes = "NVIDIA H100 80GB HBM3"
    used: int = 10 * GIB
    reserved: int = GIB
    total: int = 80 * GIB
    util: int = 40
    compute: Lines = field(default_factory=list)
    graphics: Lines = field(default_factory=list)
    mps: Lines = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    temperature: int = 61
    reasons: int = 1
    ecc: tuple[int, int] = (0, 0)
    # corrected, uncorrected, pending, failed; None: a GPU from before Ampere
    rows: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    pages: tuple[int, int] = (0, 0)
    pages_pending: int = 0
    work: dict[int, Work] = field(default_factory=dict)
    answers: str = "mean"
    junk: list[tuple[int, int, int]] = field(default_factory=list)
    energy_mj: int = 0
    power_mw: int = 350_500
    compute_mode: int = 0
    accounting: bool = False
    lives: dict[int, tuple[float, float | None]] = field(default_factory=dict)
    instances: list[FakeInstance] = field(default_factory=list)
    # Workers of which the driver gives no samples.
    hidden: set[int] = field(default_factory=set)
    # {function: what it does instead}: an exception is raised, a Hang hangs, else it is the answer.
    odd: dict[str, Any] = field(default_factory=dict)

    def fails(self, code: int) -> None:
        """Every call about this GPU answers with `code`, until `works`."""
        self.errors["*"] = code

    def works(self) -> None:
        self.errors.clear()


class Hang(threading.Event):
    """A call that never comes back: its thread ends with the process.

    So it does not go on with the fake of another test.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_reached = False

    def wait(self, timeout: float | None = None) -> bool:
        self._is_reached = True
        return super().wait(timeout)

    def patience_s(self, call: str) -> float:
        """No longer than needed: 0 once after a call has begun to hang."""
        is_reached, self._is_reached = self._is_reached, False
        return 0.0 if is_reached else 60.0


@dataclass(frozen=True)
class Handle:
    gpu: Any
    generation: int


class FakeNvml:
    """Install it, then change `gpus` and `errors` between sweeps."""

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = list(gpus)
        self.errors: dict[str, int] = {}
        self.odd: dict[str, Any] = {}
        self.generation = 0
        # As in the driver, the last of several users of a process closes it.
        self.users = self.inits = 0
        # GPUs that it counts until it is initialised again, as most drivers do; None = all present.
        self.counted: int | None = None
        self.calls: list[str] = []
        self.odd_calls: list[str] = []
        self.event_sets: list[object] = []
        self.xids: SimpleQueue[tuple[FakeGpu, int]] = SimpleQueue()
        # The driver's own clock: neither ours nor any machine's.
        self.now_us = 7_000_000_123

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
        for name in dir(self):
            if name.startswith("nvml"):
                monkeypatch.setattr(pynvml, name, self._recorded(name))
        return self

    def _recorded(self, name: str) -> Any:
        real = getattr(self, name)

        def call(*args: Any) -> Any:
            self.calls.append(name)
            self._raise(self.errors, name)
            gpu: Any = None
            if args and isinstance(args[0], Handle):
                if args[0].generation != self.generation:
                    raise Misuse("a stale handle may crash NVML")
                gpu = args[0].gpu
                self._raise(gpu.errors, name)
            elif name == "nvmlDeviceGetHandleByIndex":
                gpu = self.gpus[args[0]]
            odd = {**self.odd, **getattr(gpu, "odd", {})}
            if name not in odd:
                return real(*args)
            self.odd_calls.append(name)
            return self._behave(odd[name])

        return call

    @staticmethod
    def _behave(odd: Any) -> Any:
        if isinstance(odd, Exception):
            raise odd
        if isinstance(odd, Hang):
            odd.wait()
        return odd

    @staticmethod
    def _raise(errors: dict[str, int], name: str) -> None:
        code = errors.get(name) or errors.get("*")
        if code:
            raise pynvml.NVMLError(code)

    @property
    def is_open(self) -> bool:
        return self.users > 0

    def nvmlInit(self) -> None:
        if not self.is_open:
            self.counted = None
            self.generation += 1
        self.users, self.inits = self.users + 1, self.inits + 1

    def nvmlShutdown(self) -> None:
        if not self.is_open:
            raise Misuse("NVML is not open")
        self.users -= 1
        self.generation += not self.is_open

    def nvmlDeviceGetCount(self) -> int:
        if not self.is_open:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        return len(self.gpus) if self.counted is None else self.counted

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:
        self._raise(self.gpus[index].errors, "nvmlDeviceGetHandleByIndex")
        return Handle(self.gpus[index], self.generation)

    def nvmlDeviceGetUUID(self, handle: Handle) -> Any:
        return handle.gpu.uuid

    def nvmlDeviceGetName(self, handle: Handle) -> Any:
        return handle.gpu.name

    def nvmlDeviceGetPciInfo(self, handle: Handle) -> Any:
        return SimpleNamespace(busId=b"00000000:18:00.0")

    def nvmlDeviceGetCudaComputeCapability(self, handle: Handle) -> tuple[int, int]:
        return (9, 0)

    def nvmlDeviceGetMemoryInfo(self, handle: Handle, version: int | None = None) -> Any:
        gpu = handle.gpu
        if version is not None:
            self._raise(gpu.errors, "memory v2")
            return SimpleNamespace(total=gpu.total, used=gpu.used, reserved=gpu.reserved)
        return SimpleNamespace(total=gpu.total, used=gpu.used + gpu.reserved)

    def nvmlDeviceGetUtilizationRates(self, handle: Handle) -> Any:
        gpu = handle.gpu
        until = self.now_us / 1e6
        busy = sum(work(until - 1, until) for work in gpu.work.values())
        return SimpleNamespace(gpu=round(100 * min(1.0, busy)) if gpu.work else gpu.util, memory=20)

    def nvmlDeviceGetProcessesUtilizationInfo(self, handle: Handle, since_us: int) -> list[Any]:
        return self._shares(handle.gpu, since_us)

    def nvmlDeviceGetProcessUtilization(self, handle: Handle, since_us: int) -> list[Any]:
        return self._shares(handle.gpu, since_us)

    def _shares(self, gpu: FakeGpu, since_us: int) -> list[Any]:
        kinds = {"ring": driver_samples.ring, "mean": driver_samples.mean}
        tell = kinds.get(gpu.answers)
        named = {pid: work for pid, work in gpu.work.items() if pid not in gpu.hidden}
        found = tell(named, since_us, self.now_us) if tell else []
        found += [SimpleNamespace(pid=p, timeStamp=t, smUtil=pct) for p, t, pct in gpu.junk]
        if gpu.instances:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if not found:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found

    def nvmlDeviceGetAccountingMode(self, handle: Handle) -> int:
        return int(handle.gpu.accounting)

    def nvmlDeviceGetAccountingPids(self, handle: Handle) -> list[int]:
        begun = {pid for pid, (start, _) in handle.gpu.lives.items() if start * 1e6 <= self.now_us}
        return sorted(begun)

    def nvmlDeviceGetAccountingStats_v2(self, handle: Handle, pid: int) -> Any:
        if pid not in self.nvmlDeviceGetAccountingPids(handle):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        start, end = handle.gpu.lives[pid]
        end_us = None if end is None else int(end * 1e6)
        work = handle.gpu.work[pid]
        return driver_samples.account(pid, work, int(start * 1e6), end_us, self.now_us)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Handle) -> int:
        return int(handle.gpu.energy_mj)

    def nvmlDeviceGetMigMode(self, handle: Handle) -> list[int]:
        return [int(bool(handle.gpu.instances))] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, index: int) -> Handle:
        if index >= len(handle.gpu.instances):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return Handle(handle.gpu.instances[index], self.generation)

    def nvmlDeviceGetGpuInstanceId(self, handle: Handle) -> int:
        return int(handle.gpu.number)

    def nvmlDeviceGetPowerUsage(self, handle: Handle) -> int:
        return int(handle.gpu.power_mw)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Handle) -> int:
        return 700_000

    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int) -> int:
        if sensor != pynvml.NVML_TEMPERATURE_GPU:
            raise Misuse(sensor)
        return handle.gpu.temperature

    def nvmlDeviceGetClockInfo(self, handle: Handle, clock: int) -> int:
        return {pynvml.NVML_CLOCK_SM: 1755, pynvml.NVML_CLOCK_MEM: 2619}[clock]

    def nvmlDeviceGetPerformanceState(self, handle: Handle) -> int:
        return 0

    def nvmlDeviceGetComputeMode(self, handle: Handle) -> int:
        return handle.gpu.compute_mode

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550.90.07"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 12040

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Handle) -> list[Any]:
        return _lines(handle.gpu.compute)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: Handle) -> list[Any]:
        return _lines(handle.gpu.compute)

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Handle) -> list[Any]:
        return _lines(handle.gpu.graphics)

    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle: Handle) -> list[Any]:
        return _lines(handle.gpu.mps)

    nvmlDeviceGetGraphicsRunningProcesses_v2 = nvmlDeviceGetGraphicsRunningProcesses_v3
    nvmlDeviceGetMPSComputeRunningProcesses_v2 = nvmlDeviceGetMPSComputeRunningProcesses_v3

    def nvmlDeviceGetArchitecture(self, handle: Handle) -> int:
        return 9

    def nvmlDeviceGetNumGpuCores(self, handle: Handle) -> int:
        return 16896

    def nvmlDeviceGetMaxClockInfo(self, handle: Handle, clock: int) -> int:
        if clock != pynvml.NVML_CLOCK_SM:
            raise Misuse(clock)
        return 1980

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Handle) -> int:
        return handle.gpu.reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Handle) -> int:
        return handle.gpu.reasons

    def nvmlDeviceGetTotalEccErrors(self, handle: Handle, kind: int, counter: int) -> int:
        if counter != pynvml.NVML_VOLATILE_ECC:
            raise Misuse(counter)
        return handle.gpu.ecc[kind]

    def nvmlDeviceGetRemappedRows(self, handle: Handle) -> tuple[int, int, int, int]:
        if handle.gpu.rows is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return handle.gpu.rows

    def nvmlDeviceGetRetiredPages(self, handle: Handle, cause: int) -> list[int]:
        return [0] * handle.gpu.pages[cause]

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: Handle) -> int:
        return handle.gpu.pages_pending

    def nvmlEventSetCreate(self) -> object:
        self.event_sets.append(object())
        return self.event_sets[-1]

    def nvmlEventSetFree(self, events: object) -> None:
        """Nothing to free."""

    def nvmlDeviceRegisterEvents(self, handle: Handle, types: int, events: object) -> None:
        if types != pynvml.nvmlEventTypeXidCriticalError:
            raise Misuse(types)

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> Any:
        if not any(known is events for known in self.event_sets):
            # A thread that another test has left behind.
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        try:
            gpu, code = self.xids.get(timeout=timeout_ms / 1000)
        except Empty:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT) from None
        return SimpleNamespace(device=Handle(gpu, self.generation), eventType=8, eventData=code)


def _lines(lines: Lines) -> list[Any]:
    none = 0xFFFFFFFF
    return [
        SimpleNamespace(pid=pid, usedGpuMemory=size, gpuInstanceId=none, computeInstanceId=none)
        for pid, size in lines
    ]
