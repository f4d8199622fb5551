"""Devices whose drivers have no answer to some calls, as reported from the field.

Sources are public issue threads. Errors and values are those that NVML really returned there.
"""

from __future__ import annotations

import pynvml

from tests.monitor.fake_nvml import GIB, FakeGpu, FakeInstance

NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
NO_PERMISSION = pynvml.NVML_ERROR_NO_PERMISSION
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN
MEMORY, USE = "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates"
POWER, LIMIT = "nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit"
ENERGY, TEMPERATURE = "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetTemperature"
CLOCK, ECC = "nvmlDeviceGetClockInfo", "nvmlDeviceGetTotalEccErrors"


def gb10(uuid: str = "GPU-gb10") -> FakeGpu:
    """DGX Spark: both memory calls NOT_SUPPORTED, power without a limit, memory of processes given.

    nvitop pull request 208, ArcticTraining pull request 345, gpustat pull request 179.
    """
    errors = dict.fromkeys((MEMORY, LIMIT, ECC), NOT_SUPPORTED)
    return FakeGpu(
        uuid, "NVIDIA GB10", util=0, temperature=35, power_mw=11_170, rows=None, errors=errors
    )


def orin(uuid: str = "GPU-orin") -> FakeGpu:
    """Jetson Orin: NVML opens and names the GPU; telemetry is NOT_SUPPORTED.

    intelligence-per-watt issue 40 (driver 595.78), nvitop issue 168.
    """
    calls = (MEMORY, USE, POWER, LIMIT, ENERGY, TEMPERATURE, CLOCK, ECC)
    return FakeGpu(uuid, "Orin (nvgpu)", rows=None, errors=dict.fromkeys(calls, NOT_SUPPORTED))


def wsl(uuid: str = "GPU-wsl") -> FakeGpu:
    """WSL: the newer memory call "Unknown Error", memory of processes not available.

    nvitop pull request 30, nvtop issue 432, cudf issue 9955 (utilisation NOT_SUPPORTED then).
    """
    errors = {"memory v2": UNKNOWN, USE: NOT_SUPPORTED, LIMIT: NOT_SUPPORTED}
    return FakeGpu(
        uuid,
        "NVIDIA GeForce RTX 4070 Ti SUPER",
        total=16 * GIB,
        compute=[(79, None)],
        errors=errors,
    )


def vgpu(uuid: str = "GPU-vgpu") -> FakeGpu:
    """A guest with a vGPU: memory and utilisation, but no sensor of the board.

    TensorRT-LLM issue 1861; nvidia-smi of guests shows N/A for fan, temperature and power.
    """
    calls = (POWER, LIMIT, ENERGY, TEMPERATURE, ECC)
    return FakeGpu(
        uuid, "GRID A100D-40C", total=40 * GIB, errors=dict.fromkeys(calls, NOT_SUPPORTED)
    )


def mig_parent(uuid: str = "GPU-mig") -> FakeGpu:
    """MIG: no utilisation of the parent; memory and power as ever. nvitop issue 5."""
    return FakeGpu(
        uuid,
        "NVIDIA A100-SXM4-40GB",
        total=40 * GIB,
        instances=[FakeInstance("MIG-1", 1)],
        errors={USE: NOT_SUPPORTED},
    )


def mig_in_container(uuid: str = "GPU-slice") -> FakeGpu:
    """A container with one slice: memory of the parent is refused, "Insufficient Permissions".

    nvidia-container-toolkit issue 842.
    """
    gpu = mig_parent(uuid)
    gpu.errors = {USE: NOT_SUPPORTED, MEMORY: NO_PERMISSION}
    return gpu


def sleeping_laptop(uuid: str = "GPU-laptop") -> FakeGpu:
    """A laptop's GPU without a power limit: nvidia-smi shows N/A for power and fan.

    nvidia-docker issue 40 (Quadro K2100M), nvidia_gpu_exporter and freon issue 306: N/A in D3cold.
    """
    calls = (POWER, LIMIT, ENERGY, ECC, "nvmlDeviceGetMigMode")
    return FakeGpu(
        uuid, "Quadro K2100M", total=2 * GIB, used=GIB, reserved=0, rows=None,
        errors=dict.fromkeys(calls, NOT_SUPPORTED),
    )  # fmt: skip


ALL = (gb10, orin, wsl, vgpu, mig_parent, mig_in_container, sleeping_laptop)
