"""GPUs that a sweep did not see although they were there: they stay in sight, as lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from monitor.gpu_states import GpuState
from monitor.readings import GpuReading, GpuSweep, Health

FORGET_AFTER = timedelta(days=1)
NOT_LISTED = "The driver does not list this GPU any more."
_STATIC = ("name", "pci_id", "memory_total_bytes", "power_limit_w", "compute_capability")


def complete(
    sweep: GpuSweep, before: Mapping[str, GpuReading], now: datetime
) -> tuple[GpuReading, ...]:
    """All GPUs of the sweep and those missing from it, by index.

    When no GPU could be read at all they are failing, for the reason that the sweep gives: they
    are most likely still there. One that has been lost for a day is forgotten.
    """
    seen = [_with_facts(gpu, before.get(gpu.uuid)) for gpu in sweep.gpus]
    present = {gpu.uuid for gpu in seen}
    gone = [g for g in before.values() if g.uuid not in present and not _forgotten(g, now)]
    seen += [_missing(old, sweep) for old in gone]
    return tuple(sorted(seen, key=lambda gpu: (gpu.index, gpu.uuid)))


def explained(sweep: GpuSweep, gpus: Collection[GpuReading]) -> GpuSweep:
    """Without its problem, when that is about GPUs which are among `gpus`, shown as lost."""
    missing = len(gpus) - len(sweep.gpus)
    if sweep.gpus and sweep.unnamed and missing >= sweep.unnamed:
        return replace(sweep, problem=None, remedy=None)
    return sweep


def _missing(old: GpuReading, sweep: GpuSweep) -> GpuReading:
    health = Health.LOST if sweep.gpus or not sweep.problem else Health.FAILING
    # What was said when it was lost says more than that it is not listed.
    said = old.problem if old.health is health else None
    problem = f"{sweep.problem} {sweep.remedy or ''}".strip() if sweep.problem else said
    reading = GpuReading(
        uuid=old.uuid, index=old.index, health=health, problem=problem or NOT_LISTED
    )
    return _with_facts(reading, old)


def _with_facts(gpu: GpuReading, old: GpuReading | None) -> GpuReading:
    """A GPU that does not answer keeps the name and size that it had."""
    if old is None or gpu.health is Health.OK:
        return gpu
    return replace(
        gpu,
        **{
            name: getattr(old, name) if getattr(gpu, name) is None else getattr(gpu, name)
            for name in _STATIC
        },
    )


def _forgotten(old: GpuReading, now: datetime) -> bool:
    lost = old.state is GpuState.LOST and old.state_since is not None
    return lost and now - (old.state_since or now) > FORGET_AFTER
