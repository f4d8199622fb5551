"""What goes wrong on a simulated server: now and then one GPU is too hot and slows down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from monitor.health import HealthReading
from monitor.readings import GpuReading, Health

# The fifth of each eight GPUs, for 90 s every 40 minutes.
HOT_EVERY_S, HOT_FOR_S, HOT_OF_EIGHT = 2_400.0, 90.0, 4
HOT_C = 88.0
_IDLE, _POWER_CAP, _HEAT = 0x1, 0x4, 0x40
_CAPPED_W = 480.0


def troubled(gpus: Sequence[GpuReading], t: float) -> tuple[GpuReading, ...]:
    """The GPUs, one of them too hot where it is time for that."""
    return tuple(_heated(gpu) if _is_hot(gpu, t) else gpu for gpu in gpus)


def health(gpus: Sequence[GpuReading], t: float) -> tuple[HealthReading, ...]:
    """What they count of their own faults; a lost one tells nothing."""
    return tuple(
        HealthReading(
            gpu_uuid=gpu.uuid,
            clock_reasons=_reasons(gpu, t),
            ecc_corrected=3 if gpu.index % 8 == 2 else 0,
            ecc_uncorrected=0,
            remapped_corrected=0,
            remapped_uncorrected=0,
            remap_pending=False,
            remap_failed=False,
        )
        for gpu in gpus
        if gpu.health is Health.OK
    )


def _is_hot(gpu: GpuReading, t: float) -> bool:
    phase = (t + 600 + 97 * (gpu.index // 8)) % HOT_EVERY_S
    return gpu.index % 8 == HOT_OF_EIGHT and gpu.health is Health.OK and phase < HOT_FOR_S


def _heated(gpu: GpuReading) -> GpuReading:
    return replace(gpu, temperature_c=HOT_C, sm_clock_mhz=1155)


def _reasons(gpu: GpuReading, t: float) -> int:
    if _is_hot(gpu, t):
        return _HEAT
    if not gpu.utilization_pct:
        return _IDLE
    return _POWER_CAP if (gpu.power_w or 0) > _CAPPED_W else 0
