"""The probe of NVIDIA GPUs, through NVML."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pynvml

from monitor.probes import nvml_faults as faults
from monitor.probes import nvml_values as values
from monitor.probes.nvml_faults import Refused
from monitor.probes.nvml_processes import ProcessLists
from monitor.readings import ClaimFact, GpuProcess, GpuReading, GpuSweep

LIBRARY = "libnvidia-ml.so.1"
KERNEL_LIST = Path("/proc/driver/nvidia/gpus")
# Initialising again costs time; it may take this share of it at most.
REINIT_SHARE = 0.02
REINIT_MIN_S, REINIT_MAX_S = 2.0, 60.0


@dataclass(slots=True)
class _Device:
    """A handle and what is known to stay the same about the GPU behind it."""

    handle: Any
    facts: GpuReading


class NvmlProbe:
    """Keeps NVML open between sweeps; one GPU that fails never ends a sweep."""

    name = "nvml"

    def __init__(self) -> None:
        self._open = False
        self._devices: list[_Device] = []
        self._facts: dict[str, GpuReading] = {}
        self._unnamed: list[faults.Fault] = []
        self._listing: list[str] = []
        self._reinit_at = 0.0
        self._reinit_wanted = False
        self._has_memory_v2: bool | None = None
        self._lists = ProcessLists(_must)

    def open(self) -> None:
        """Open NVML in this process. A fault is not raised: the sweeps tell it and try again."""
        try:
            self._initialise()
        except Refused:
            self.close()

    def close(self) -> None:
        if self._open:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
        self._open = False
        self._devices = []

    def read(self, now: datetime, claims: Sequence[ClaimFact]) -> GpuSweep:
        """One sweep over all GPUs. The claims are not needed: the driver knows the pids."""
        try:
            self._make_ready()
            readings, processes = self._sweep()
        except Refused as refused:
            self.close()
            return GpuSweep(problem=refused.fault.problem, remedy=refused.fault.remedy)
        unnamed = self._unnamed
        return GpuSweep(
            gpus=tuple(readings),
            processes=tuple(processes),
            unnamed=len(unnamed),
            problem=unnamed[0].problem if unnamed else None,
            remedy=unnamed[0].remedy if unnamed else None,
        )

    def versions(self) -> list[str]:
        """Those of the driver's library and of CUDA, for people; none while NVML is not open."""
        if not self._open:
            return []
        driver = values.text(_ask("nvmlSystemGetDriverVersion"))
        cuda = _ask("nvmlSystemGetCudaDriverVersion")
        return [
            *([f"driver {driver}"] if driver else []),
            *([f"CUDA {cuda // 1000}.{cuda % 1000 // 10}"] if cuda else []),
        ]

    def _sweep(self) -> tuple[list[GpuReading], list[GpuProcess]]:
        readings: list[GpuReading] = []
        processes: list[GpuProcess] = []
        for device in self._devices:
            try:
                reading = self._reading(device)
                listed = self._lists.of(
                    device.handle, device.facts.uuid, reading.memory_total_bytes
                )
            except Refused as refused:
                if refused.code in faults.LIBRARY:
                    raise
                readings.append(_broken(device.facts, refused.fault))
                # After a loss every handle is suspect: initialise again, find all by UUID.
                self._reinit_wanted = True
                continue
            readings.append(reading)
            processes += listed
        return readings, processes

    def _make_ready(self) -> None:
        if not self._open:
            self._initialise()
        elif self._changed() and time.monotonic() >= self._reinit_at:
            self.close()
            self._initialise()

    def _changed(self) -> bool:
        """Whether the GPUs may be others than those whose handles we hold.

        Most drivers count GPUs only when NVML is initialised, so that is tried again while one is
        missing; the kernel's own list tells of new ones.
        """
        return (
            self._reinit_wanted
            or len(self._devices) < len(self._facts)
            or _ask("nvmlDeviceGetCount") != len(self._devices)
            or _listing() != self._listing
        )

    def _initialise(self) -> None:
        began = time.monotonic()
        _must("nvmlInit")
        self._open, self._reinit_wanted, self._listing = True, False, _listing()
        self._devices, self._unnamed = [], []
        for index in range(_must("nvmlDeviceGetCount")):
            try:
                handle = _must("nvmlDeviceGetHandleByIndex", index)
                self._devices.append(_Device(handle, self._static(handle, index)))
            except Refused as refused:
                if refused.code in faults.LIBRARY:
                    raise
                self._unnamed.append(refused.fault)
        took = time.monotonic() - began
        pause = min(REINIT_MAX_S, max(REINIT_MIN_S, took / REINIT_SHARE))
        self._reinit_at = time.monotonic() + pause

    def _static(self, handle: Any, index: int) -> GpuReading:
        uuid = values.text(_must("nvmlDeviceGetUUID", handle)) or ""
        if uuid not in self._facts:
            pci = _ask("nvmlDeviceGetPciInfo", handle)
            capability = _ask("nvmlDeviceGetCudaComputeCapability", handle)
            self._facts[uuid] = GpuReading(
                uuid=uuid,
                index=index,
                name=values.text(_ask("nvmlDeviceGetName", handle)),
                pci_id=values.text(pci.busId) if pci else None,
                compute_capability=".".join(map(str, capability)) if capability else None,
            )
        return replace(self._facts[uuid], index=index)

    def _reading(self, device: _Device) -> GpuReading:
        handle = device.handle
        answers = _Answers(handle)
        total, used, reserved = answers.of(lambda: self._memory(handle)) or (None, None, None)
        use = answers.of(lambda: _must("nvmlDeviceGetUtilizationRates", handle))
        reading = replace(
            device.facts,
            memory_total_bytes=total,
            memory_used_bytes=used,
            memory_reserved_bytes=reserved,
            utilization_pct=values.percent(use.gpu) if use else None,
            memory_utilization_pct=values.percent(use.memory) if use else None,
            power_w=values.watts(answers.value("nvmlDeviceGetPowerUsage")),
            power_limit_w=values.watts(answers.value("nvmlDeviceGetEnforcedPowerLimit")),
            temperature_c=values.number(
                answers.value("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)
            ),
            sm_clock_mhz=answers.value("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=answers.value("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
            performance_state=values.state(answers.value("nvmlDeviceGetPerformanceState")),
        )
        if total is not None:
            known = replace(device.facts, memory_total_bytes=total)
            device.facts = self._facts[known.uuid] = known
        return _broken(reading, answers.fault) if answers.is_bad else reading

    def _memory(self, handle: Any) -> tuple[int | None, int | None, int | None]:
        """Total, used and reserved bytes. The old call counts what is reserved as used."""
        if self._has_memory_v2 is not False:
            try:
                info = _must("nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2)
                self._has_memory_v2 = True
                return info.total, info.used, info.reserved
            except Refused as refused:
                # WSL answers the new call with "unknown error", always.
                if self._has_memory_v2 or refused.code not in faults.NO_ANSWER | {faults.UNKNOWN}:
                    raise
        info = _must("nvmlDeviceGetMemoryInfo", handle)
        self._has_memory_v2 = False
        return info.total, info.used, None


class _Answers:
    """The answers of one GPU in one sweep: whether some came, and the first fault if not."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.some = False
        self.fault: faults.Fault | None = None

    @property
    def is_bad(self) -> bool:
        """Nothing answered but faults, or the GPU itself asks for a reset."""
        return self.fault is not None and (not self.some or self.fault is faults.RESET)

    def value(self, name: str, *args: Any) -> Any:
        return self.of(lambda: _must(name, self._handle, *args))

    def of(self, ask: Callable[[], Any]) -> Any:
        try:
            answer = ask()
        except Refused as refused:
            if refused.is_fatal:
                raise
            if refused.code not in faults.NO_ANSWER:
                self.fault = self.fault or refused.fault
            return None
        self.some = True
        return answer


def is_installed() -> bool:
    """Whether the driver's library is on this machine (it is loaded, not initialised)."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def _listing() -> list[str]:
    """The GPUs that the kernel module knows; empty where it does not list them."""
    try:
        return sorted(path.name for path in KERNEL_LIST.iterdir())
    except OSError:
        return []


def _must(name: str, *args: Any) -> Any:
    call: Callable[..., Any] = getattr(pynvml, name)
    try:
        return call(*args)
    except pynvml.NVMLError as error:
        raise Refused(error.value, str(error)) from None


def _ask(name: str, *args: Any) -> Any:
    """The answer, or None where this GPU or driver has none."""
    try:
        return _must(name, *args)
    except Refused as refused:
        if refused.is_fatal:
            raise
        return None


def _broken(facts: GpuReading, fault: faults.Fault | None) -> GpuReading:
    if fault is None:
        return facts
    return replace(facts, health=fault.health, problem=f"{fault.problem} {fault.remedy}")
