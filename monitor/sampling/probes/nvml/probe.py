"""The probe of NVIDIA GPUs, through NVML."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pynvml

from monitor.facts.health import HealthReading
from monitor.facts.readings import ClaimFact, GpuReading, GpuSweep, Health
from monitor.facts.usage import CallCost, GpuMark
from monitor.sampling.probes.nvml import calls, faults
from monitor.sampling.probes.nvml.calls import Answers, Calls
from monitor.sampling.probes.nvml.faults import CallRefused
from monitor.sampling.probes.nvml.health import HealthTier, XidWatch
from monitor.sampling.probes.nvml.processes import ProcessTier

LIBRARY = "libnvidia-ml.so.1"
KERNEL_LIST = Path("/proc/driver/nvidia/gpus")
# Initialising again, while a GPU is missing, may take this share of the time at most.
REINIT_SHARE = 0.05
REINIT_MIN_S, REINIT_MAX_S = 0.9, 60.0
# And this share where the kernel lists no GPUs, so that nothing else tells of new ones.
RELOOK_SHARE, RELOOK_MIN_S = 0.01, 1.9


@dataclass(slots=True)
class _Device:
    """A handle, what is known to stay the same about the GPU behind it, and its last answers."""

    handle: Any
    facts: GpuReading
    last: dict[str, Any] = field(default_factory=dict)


class NvmlProbe:
    """Keeps NVML open between sweeps; one GPU that fails never ends a sweep.

    Processes are looked at each `processes_s` seconds, GPUs at every sweep.
    """

    name = "nvml"

    def __init__(self, processes_s: float = 0.0) -> None:
        self._open = False
        self._devices: list[_Device] = []
        self._facts: dict[str, GpuReading] = {}
        self._unnamed: list[faults.Fault] = []
        self._unopened: list[int] = []
        self._counted = 0
        self._listing: list[str] = []
        self._reinit_at = self._relook_at = 0.0
        self._reinit_wanted = False
        self._has_memory_v2: bool | None = None
        self._calls = Calls(_must)
        self._must, self._ask = self._calls.must, self._calls.ask
        self._tier = ProcessTier(self._calls, processes_s)
        self._health = HealthTier(self._must)
        self._xids = XidWatch(self._must, _must)

    @property
    def asking(self) -> tuple[str, float] | None:
        """The call that is under way and when it began (monotonic): one may never come back."""
        return self._calls.asking

    def open(self) -> None:
        """Open NVML in this process. A fault is not raised: the sweeps tell it and try again."""
        try:
            self._initialise()
        except CallRefused:
            self.close()

    def close(self) -> None:
        self._xids.stop()
        if self._open:
            with suppress(CallRefused):
                self._must("nvmlShutdown")
        self._open = False
        self._devices = []

    def read(self, now: datetime, claims: Sequence[ClaimFact]) -> GpuSweep:
        """One sweep over all GPUs. The claims are not needed: the driver knows the pids."""
        self._calls.times.begin(now, len(self._devices))
        self._tier.begin(now)
        try:
            self._make_ready()
            sweep = self._sweep(now)
        except CallRefused as refused:
            self.close()
            sweep = GpuSweep(problem=refused.fault.problem, remedy=refused.fault.remedy)
        errors, failures = self._calls.take_counts()
        return replace(
            sweep,
            xids=self._xids.take(),
            query_errors=errors,
            init_failures=failures,
            costs=self._calls.times.costs,
        )

    def resume(
        self, marks: Mapping[str, GpuMark], swept_at: datetime, costs: Sequence[CallCost]
    ) -> None:
        """Go on where another process stopped at `swept_at`, before the first sweep."""
        self._tier.use.resume(dict(marks), swept_at)
        self._calls.times.resume(costs)

    def versions(self) -> list[str]:
        """Those of the driver's library and of CUDA, for people; none while NVML is not open."""
        if not self._open:
            return []
        driver = calls.text(self._ask("nvmlSystemGetDriverVersion"))
        cuda = self._ask("nvmlSystemGetCudaDriverVersion")
        return [
            *([f"driver {driver}"] if driver else []),
            *([f"CUDA {cuda // 1000}.{cuda % 1000 // 10}"] if cuda else []),
        ]

    def _sweep(self, now: datetime) -> GpuSweep:
        readings: list[GpuReading] = []
        health: list[HealthReading] = []
        for device in self._devices:
            uuid = device.facts.uuid
            try:
                reading = self._reading(device)
                self._tier.look(device.handle, reading, now)
                counts = self._health.of(device.handle, uuid, now.timestamp())
            except CallRefused as refused:
                if refused.code in faults.LIBRARY:
                    raise
                readings.append(faults.broken(device.facts, refused.fault))
                # After a loss every handle is suspect: initialise again, find all by UUID.
                self._reinit_wanted = True
                continue
            readings.append(reading)
            health.append(counts)
        self._tier.end()
        unnamed = self._unnamed
        answering = {gpu.uuid for gpu in readings if gpu.health is Health.OK}
        sweep = GpuSweep(
            gpus=tuple(readings),
            health=tuple(health),
            unnamed=len(unnamed),
            problem=unnamed[0].problem if unnamed else None,
            remedy=unnamed[0].remedy if unnamed else None,
        )
        return self._tier.added_to(sweep, answering)

    def _make_ready(self) -> None:
        if not self._open:
            self._initialise()
        elif self._has_news() or self._is_time_to_look():
            self.close()
            self._initialise()

    def _has_news(self) -> bool:
        """Cheap signs that there are other GPUs than those whose handles we hold.

        Most drivers count GPUs only when NVML is initialised; the kernel's own list tells of new
        ones before that. A GPU that could not be opened may be asked again without that.
        """
        count = self._ask("nvmlDeviceGetCount")
        if count != self._counted or _listing() != self._listing:
            return True
        return any(self._answers(index) for index in self._unopened)

    def _is_time_to_look(self) -> bool:
        """Where a GPU is missing, where a handle may be stale, or where nothing tells of news."""
        misses = self._reinit_wanted or len(self._devices) < len(self._facts)
        at = time.monotonic()
        return (misses and at >= self._reinit_at) or (not self._listing and at >= self._relook_at)

    def _answers(self, index: int) -> bool:
        try:
            self._must("nvmlDeviceGetUUID", self._must("nvmlDeviceGetHandleByIndex", index))
        except CallRefused as refused:
            if refused.code in faults.LIBRARY:
                raise
            return False
        return True

    def _initialise(self) -> None:
        began = time.monotonic()
        self._must("nvmlInit")
        self._open, self._reinit_wanted, self._listing = True, False, _listing()
        self._devices, self._unnamed, self._unopened = [], [], []
        self._counted = self._must("nvmlDeviceGetCount")
        for index in range(self._counted):
            try:
                handle = self._must("nvmlDeviceGetHandleByIndex", index)
                self._devices.append(_Device(handle, self._static(handle, index)))
            except CallRefused as refused:
                if refused.code in faults.LIBRARY:
                    raise
                self._unnamed.append(refused.fault)
                self._unopened.append(index)
        took = time.monotonic() - began
        done = time.monotonic()
        self._reinit_at = done + min(REINIT_MAX_S, max(REINIT_MIN_S, took / REINIT_SHARE))
        self._relook_at = done + min(REINIT_MAX_S, max(RELOOK_MIN_S, took / RELOOK_SHARE))
        self._tier.use.forget_modes()
        self._xids.start({device.facts.uuid: device.handle for device in self._devices})

    def _static(self, handle: Any, index: int) -> GpuReading:
        uuid = calls.text(self._must("nvmlDeviceGetUUID", handle)) or ""
        if uuid not in self._facts:
            pci = self._ask("nvmlDeviceGetPciInfo", handle)
            capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
            self._facts[uuid] = GpuReading(
                uuid=uuid,
                index=index,
                name=calls.text(self._ask("nvmlDeviceGetName", handle)),
                pci_id=calls.text(pci.busId) if pci else None,
                compute_capability=".".join(map(str, capability)) if capability else None,
                architecture=calls.architecture(self._ask("nvmlDeviceGetArchitecture", handle)),
                cores=self._ask("nvmlDeviceGetNumGpuCores", handle),
                max_sm_clock_mhz=self._ask(
                    "nvmlDeviceGetMaxClockInfo", handle, pynvml.NVML_CLOCK_SM
                ),
            )
        return replace(self._facts[uuid], index=index)

    def _reading(self, device: _Device) -> GpuReading:
        handle = device.handle
        answers = Answers(self._calls, handle, device.last)
        total, used, reserved = answers.of(lambda: self._memory(handle)) or (None, None, None)
        use = answers.value("nvmlDeviceGetUtilizationRates")
        reading = replace(
            device.facts,
            memory_total_bytes=total,
            memory_used_bytes=used,
            memory_reserved_bytes=reserved,
            utilization_pct=calls.percent(use.gpu) if use else None,
            memory_utilization_pct=calls.percent(use.memory) if use else None,
            power_w=calls.watts(answers.value("nvmlDeviceGetPowerUsage")),
            power_limit_w=calls.watts(answers.value("nvmlDeviceGetEnforcedPowerLimit")),
            temperature_c=calls.number(
                answers.value("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)
            ),
            sm_clock_mhz=answers.value("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=answers.value("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
            performance_state=calls.state(answers.value("nvmlDeviceGetPerformanceState")),
            compute_mode=calls.compute_mode(answers.value("nvmlDeviceGetComputeMode")),
            energy_mj=answers.value("nvmlDeviceGetTotalEnergyConsumption"),
        )
        if total is not None:
            static = replace(device.facts, memory_total_bytes=total)
            device.facts = self._facts[static.uuid] = static
        return faults.broken(reading, answers.fault) if answers.is_bad else reading

    def _memory(self, handle: Any) -> tuple[int | None, int | None, int | None]:
        """Total, used and reserved bytes. The old call counts what is reserved as used."""
        if self._has_memory_v2 is not False:
            try:
                info = self._must("nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2)
                self._has_memory_v2 = True
                return info.total, info.used, info.reserved
            except CallRefused as refused:
                # WSL answers the new call with "unknown error", always.
                if self._has_memory_v2 or refused.code not in faults.NO_ANSWER | {faults.UNKNOWN}:
                    raise
        info = self._must("nvmlDeviceGetMemoryInfo", handle)
        self._has_memory_v2 = False
        return info.total, info.used, None


def is_installed() -> bool:
    """Whether the driver's library is on this machine (it is loaded, not initialised)."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def detect(now: datetime) -> tuple[GpuSweep, list[str]]:
    """One sweep and the versions of the driver. Not for a process that forks afterwards."""
    probe = NvmlProbe()
    probe.open()
    try:
        return probe.read(now, ()), probe.versions()
    finally:
        probe.close()


def _listing() -> list[str]:
    """The GPUs that the kernel module knows; empty where it does not list them."""
    try:
        return sorted(path.name for path in KERNEL_LIST.iterdir())
    except OSError:
        return []


def _must(name: str, *args: Any) -> Any:
    call: Callable[..., Any] | None = getattr(pynvml, name, None)
    if call is None:
        raise CallRefused(faults.FUNCTION_NOT_FOUND, f"this pynvml has no {name}")
    try:
        return call(*args)
    except pynvml.NVMLError as error:
        raise CallRefused(error.value, str(error)) from None
