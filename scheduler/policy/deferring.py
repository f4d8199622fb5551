"""Policy: deferrals and busy GPUs as blockers, and in the words of log lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monitor.health import Condition
from monitor.readings import GpuReading
from scheduler.blockers import Blocker, Tier
from scheduler.jobs import PriorityClass
from scheduler.policy.pressure import CLASSES, Deferral, PressurePolicy, Strain


def of_host(deferral: Deferral) -> tuple[Strain, ...]:
    """What of a deferral concerns jobs without a GPU too."""
    return tuple(strain for strain in deferral.strains if not strain.of_gpus)


def closed(deferrals: Mapping[PriorityClass, Deferral]) -> dict[PriorityClass, Blocker]:
    """By class. Nobody can tell when it ends: a deferral may follow the next."""
    return {
        kind: _blocker(kind, deferral, of_host(deferral))
        for kind, deferral in deferrals.items()
        if deferral.holds and of_host(deferral)
    }


def _blocker(kind: PriorityClass, deferral: Deferral, strains: Sequence[Strain]) -> Blocker:
    who = "no job starts" if deferral.hard else f"{kind.value} jobs wait"
    why = ", ".join(strain.text for strain in strains)
    return Blocker(
        code="Pressure",
        text=f"The machine is under load ({why}); {who} until it is calm.",
        tier=Tier.MACHINE,
        holder=", ".join(strain.label for strain in strains),
    )


def closed_gpus(
    deferrals: Mapping[PriorityClass, Deferral],
    busy: Mapping[PriorityClass, frozenset[str]],
    usable: Sequence[GpuReading],
    policy: PressurePolicy,
) -> dict[PriorityClass, dict[str, Blocker]]:
    """A busy GPU gets nothing new; while a deferral for all of them lasts, none does.

    What its health holds back is closed by that already.
    """
    found: dict[PriorityClass, dict[str, Blocker]] = {}
    for kind, uuids in busy.items():
        deferral = deferrals.get(kind)
        all_wait = deferral is not None and deferral.holds and _is_of_gpus(deferral)
        lower = policy.background_earlier_pct if kind is PriorityClass.BACKGROUND else 0.0
        closed = {
            gpu.uuid: _busy_gpu(gpu, kind, policy.gpu_busy_pct - lower)
            for gpu in usable
            if (all_wait or gpu.uuid in uuids) and gpu.condition is not Condition.THROTTLED
        }
        if closed:
            found[kind] = closed
    return found


def _is_of_gpus(deferral: Deferral) -> bool:
    return any(strain.of_gpus for strain in deferral.strains)


def _busy_gpu(gpu: GpuReading, kind: PriorityClass, limit: float) -> Blocker:
    text = (
        f"GPU {gpu.index} was more than {limit:.0f} % busy; no {kind.value} job is put beside it."
    )
    return Blocker(code="Pressure", text=text, tier=Tier.MACHINE, available=f"GPU {gpu.index}")


def line(job_id: int, deferral: Deferral, now_t: float) -> str:
    """What the log says of a job that is deferred."""
    seconds = max(0.0, deferral.until_t - now_t)
    why = ", ".join(str(strain) for strain in deferral.strains)
    return f"System under load, deferring job {job_id} for {seconds:.0f} s ({why})"


def waiting_classes(deferrals: Mapping[PriorityClass, Deferral]) -> tuple[PriorityClass, ...]:
    """Who is deferred, background first."""
    return tuple(kind for kind in CLASSES if (d := deferrals.get(kind)) is not None and d.holds)


def is_overloaded(deferrals: Mapping[PriorityClass, Deferral]) -> bool:
    """Several things at once strain the host so that normal jobs wait, or one lets none start."""
    normal = deferrals.get(PriorityClass.NORMAL)
    if normal is None or not normal.holds:
        return False
    return normal.hard or len(normal.strains) > 1
