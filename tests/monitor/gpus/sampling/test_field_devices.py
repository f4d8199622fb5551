"""Devices as they are in the field: not supported, failed once and unknown are kept apart."""

from __future__ import annotations

import os
from collections.abc import Callable

import pynvml
import pytest

from monitor.facts.readings import GpuReading, Health
from monitor.gpus.sampling.policy import bounded_sweep
from monitor.gpus.sampling.probes.nvml import NvmlProbe
from tests.monitor import field_devices
from tests.monitor.fake_nvml import GIB, FakeGpu, FakeNvml
from tests.monitor.made_readings import NOW

POWER = "nvmlDeviceGetPowerUsage"
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN


def read(probe: NvmlProbe) -> GpuReading:
    return bounded_sweep(probe.read(NOW, ())).gpus[0]


@pytest.mark.parametrize("device", field_devices.ALL, ids=lambda make: make.__name__)
def test_what_a_device_does_not_have_is_no_fault_of_it(
    monkeypatch: pytest.MonkeyPatch, device: Callable[[], FakeGpu]
) -> None:
    FakeNvml(device()).install(monkeypatch)
    probe = NvmlProbe()
    for _ in range(3):
        read(probe)
    seen = probe.read(NOW, ())
    gpu = seen.gpus[0]
    assert (gpu.health, gpu.problem, seen.query_errors) == (Health.OK, None, 0)
    assert all(getattr(gpu, name) is None for name in gpu.unsupported or ())
    is_refused = device is field_devices.mig_in_container
    assert bool(gpu.failed_calls) is is_refused


@pytest.mark.parametrize(
    ("device", "unsupported"),
    [
        (field_devices.gb10, {"memory_total_bytes", "memory_used_bytes", "power_limit_w"}),
        (field_devices.vgpu, {"power_w", "power_limit_w", "temperature_c", "energy_mj"}),
        (field_devices.wsl, {"utilization_pct", "power_limit_w"}),
        (field_devices.mig_parent, {"utilization_pct"}),
        (field_devices.sleeping_laptop, {"power_w", "power_limit_w", "energy_mj"}),
    ],
)
def test_unsupported_fields_are_named(
    monkeypatch: pytest.MonkeyPatch, device: Callable[[], FakeGpu], unsupported: set[str]
) -> None:
    FakeNvml(device()).install(monkeypatch)
    assert set(read(NvmlProbe()).unsupported or ()) == unsupported


def test_wsl_gives_its_memory_by_the_older_call(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(field_devices.wsl()).install(monkeypatch)
    gpu = read(NvmlProbe())
    assert (gpu.memory_total_bytes, gpu.memory_reserved_bytes) == (16 * GIB, None)


def test_a_call_that_is_not_supported_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(field_devices.vgpu()).install(monkeypatch)
    probe = NvmlProbe()
    for _ in range(4):
        read(probe)
    assert nvml.calls.count(POWER) == 1


def test_a_call_that_failed_is_made_again_and_named_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = FakeNvml(FakeGpu("GPU-a")).install(monkeypatch)
    nvml.gpus[0].errors = {POWER: UNKNOWN}
    probe = NvmlProbe()
    failed = read(probe)
    assert (failed.power_w, failed.unsupported) == (None, None)
    assert failed.failed_calls == (f"{POWER}: Unknown Error",)
    nvml.gpus[0].works()
    gpu = read(probe)
    assert (gpu.power_w, gpu.failed_calls) == (350.5, None)


@pytest.mark.parametrize(
    ("call", "field", "value"),
    [
        ("nvmlDeviceGetName", "name", "NVIDIA H100 80GB HBM3"),
        ("nvmlDeviceGetCudaComputeCapability", "compute_capability", "9.0"),
        ("nvmlDeviceGetPciInfo", "pci_id", "00000000:18:00.0"),
        ("nvmlDeviceGetNumGpuCores", "cores", 16896),
        ("nvmlDeviceGetMaxClockInfo", "max_sm_clock_mhz", 1980),
        ("nvmlDeviceGetArchitecture", "architecture", "Hopper"),
    ],
)
def test_one_failure_at_the_start_does_not_last(
    monkeypatch: pytest.MonkeyPatch, call: str, field: str, value: object
) -> None:
    nvml = FakeNvml(FakeGpu("GPU-a")).install(monkeypatch)
    nvml.gpus[0].errors = {call: UNKNOWN}
    probe = NvmlProbe()
    assert getattr(read(probe), field) is None
    nvml.gpus[0].works()
    assert getattr(read(probe), field) == value


@pytest.mark.parametrize(
    "code", [UNKNOWN, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_IN_USE]
)
def test_one_failure_of_a_counter_of_errors_does_not_last(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    nvml = FakeNvml(FakeGpu("GPU-a", ecc=(3, 1))).install(monkeypatch)
    nvml.gpus[0].errors = {"nvmlDeviceGetTotalEccErrors": code}
    probe = NvmlProbe()
    assert probe.read(NOW, ()).health[0].ecc_corrected is None
    nvml.gpus[0].works()
    health = probe.read(NOW, ()).health[0]
    assert (health.ecc_corrected, health.ecc_uncorrected) == (3, 1)


def test_a_list_of_processes_that_fails_once_is_not_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.getpid()
    nvml = FakeNvml(FakeGpu("GPU-a", compute=[(pid, GIB)])).install(monkeypatch)
    probe = NvmlProbe()
    probe.read(NOW, ())
    nvml.gpus[0].errors = {"nvmlDeviceGetComputeRunningProcesses_v3": UNKNOWN}
    assert [p.pid for p in probe.read(NOW, ()).processes] == [pid]


def test_one_failure_of_the_accounting_mode_does_not_last(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(FakeGpu("GPU-a", accounting=True)).install(monkeypatch)
    nvml.gpus[0].errors = {"nvmlDeviceGetAccountingMode": UNKNOWN}
    probe = NvmlProbe()
    probe.read(NOW, ())
    nvml.gpus[0].works()
    probe.read(NOW, ())
    assert "nvmlDeviceGetAccountingPids" in nvml.calls
