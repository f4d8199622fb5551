"""Events about the health of GPUs, and the users that they concern."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import log10

from monitor.facts.claims import ClaimFact
from monitor.facts.gpu_states import Ailment, Condition, HealthReading, Xid
from monitor.facts.readings import GpuReading, Health, ProcessReading, Snapshot
from monitor.gpus.policy.changes import Note, together
from monitor.gpus.policy.health import APPLICATION_XIDS, HARDWARE_XIDS, Checkup, ConditionChange

XID_WORDS = {
    13: "a program made an error on it (graphics engine exception)",
    31: "a program used memory that is not its own (page fault)",
    43: "a program stopped working on it",
    48: "its memory had an error that could not be corrected",
    62: "its internal controller stopped",
    63: "it noted a broken memory row to take out of use",
    64: "it could not take a broken memory row out of use",
    74: "its NVLink has an error",
    79: "it has fallen off the bus",
    92: "many memory errors were corrected",
    94: "a memory error hit one program",
    95: "a memory error could not be kept to one program",
    119: "its system processor does not answer",
    120: "its system processor failed",
}
_CONDITION_KINDS = {
    Condition.HEALTHY: ("GPU_HEALTHY", "info"),
    Condition.THROTTLED: ("GPU_THROTTLED", "warning"),
    Condition.FAILING: ("GPU_UNHEALTHY", "error"),
}


def of_checkup(
    checkup: Checkup,
    last: Snapshot | None,
    xids: Sequence[Xid],
    processes: Sequence[ProcessReading],
    claims: Sequence[ClaimFact],
    hot_c: float | None = None,
) -> list[Note]:
    """Events of one sweep; `processes` are those that may have caused an XID.

    `hot_c`: the temperature from which a GPU counts as too hot, for the log.
    """
    before = {health.gpu_uuid: health for health in last.health} if last else {}
    now = {health.gpu_uuid: health for health in checkup.health}
    notes = [*of_conditions(checkup.changes, hot_c), *of_ailments(checkup.gpus, before, now)]
    return [*together(notes), *of_xids(xids, checkup.gpus, processes, claims)]


def of_conditions(changes: Iterable[ConditionChange], hot_c: float | None = None) -> Iterator[Note]:
    """Changes of the condition; a lost or failing GPU already has an event of its state."""
    for change in changes:
        gpu, old = change.reading, change.old
        is_well = gpu.condition is Condition.HEALTHY
        if gpu.health is not Health.OK or (is_well and (old is None or old.problem)):
            continue
        kind, severity = _CONDITION_KINDS[gpu.condition or Condition.HEALTHY]
        why = "is healthy again and accepts jobs."
        if not is_well:
            why = f"accepts no new jobs. {gpu.condition_reason}"
        figures = {
            "gpu_util": gpu.utilization_pct,
            "temperature": gpu.temperature_c,
            "threshold": hot_c,
        }
        yield Note(
            kind=kind,
            text=f"{_name(gpu)} {why}",
            severity=severity,
            gpu_uuid=gpu.uuid,
            figures={name: value for name, value in figures.items() if value is not None},
        )


def of_ailments(
    gpus: Iterable[GpuReading],
    before: Mapping[str, HealthReading],
    now: Mapping[str, HealthReading],
) -> Iterator[Note]:
    """Findings that do not stop work: pending repairs, ECC errors, failing calls and their end."""
    for gpu in gpus:
        new, old = now[gpu.uuid], before.get(gpu.uuid)
        for ailment in new.ailments:
            if ailment.condition is Condition.HEALTHY and not _was_reported(old, ailment.code):
                yield _ailing(gpu, ailment)
        if _was_reported(old, "CALLS_FAILING") and "CALLS_FAILING" not in (new.reported or ()):
            text = f"{_name(gpu)}: all calls of the driver are answered again."
            yield Note(kind="GPU_CALLS_ANSWERED", text=text, gpu_uuid=gpu.uuid)
        if old is not None and _grew(old.ecc_corrected, new.ecc_corrected):
            text = f"{_name(gpu)} has corrected {new.ecc_corrected} memory errors so far."
            yield Note(kind="GPU_ECC_CORRECTED", text=text, gpu_uuid=gpu.uuid)


def _was_reported(old: HealthReading | None, code: str) -> bool:
    return old is not None and (old.has(code) or code in (old.reported or ()))


def of_xids(
    xids: Sequence[Xid],
    gpus: Iterable[GpuReading],
    processes: Sequence[ProcessReading],
    claims: Sequence[ClaimFact],
) -> Iterator[Note]:
    """A hardware XID concerns all users; an XID of a program concerns the users of the GPU."""
    gpus_by_uuid = {gpu.uuid: gpu for gpu in gpus}
    for xid in dict.fromkeys(xids):
        gpu = gpus_by_uuid.get(xid.gpu_uuid)
        if gpu is None:
            continue
        text = f"{_name(gpu)}: XID {xid.code}, {XID_WORDS.get(xid.code, 'see the log of NVIDIA')}."
        severity = "error" if xid.code in HARDWARE_XIDS else "warning"
        people = _people(xid.gpu_uuid, processes, claims) if xid.code in APPLICATION_XIDS else []
        if not people:
            yield Note(kind="GPU_XID", text=text, severity=severity, gpu_uuid=gpu.uuid)
        for owner, job_ref in people:
            ran = f" Job {job_ref} of {owner} ran there." if job_ref else f" {owner} ran there."
            yield Note(
                kind="GPU_XID",
                text=text + ran,
                severity=severity,
                gpu_uuid=gpu.uuid,
                job_ref=job_ref,
                owner=owner,
            )


def _people(
    gpu_uuid: str, processes: Sequence[ProcessReading], claims: Sequence[ClaimFact]
) -> list[tuple[str, str]]:
    """(owner, job) of each process that may have caused the XID: NVML does not name the pid."""
    jobs = [(c.owner, c.job_ref) for c in claims if c.gpu_uuid == gpu_uuid]
    others = [
        (p.user, "") for p in processes if p.gpu_uuid == gpu_uuid and p.user and not p.job_ref
    ]
    return list(dict.fromkeys([*jobs, *others]))


def _ailing(gpu: GpuReading, ailment: Ailment) -> Note:
    text = f"{_name(gpu)}: {ailment.text}"
    return Note(kind=f"GPU_{ailment.code}", text=text, severity="warning", gpu_uuid=gpu.uuid)


def _grew(old: int | None, new: int | None) -> bool:
    """Reported at 1, 10, 100 …: single errors are normal for large memories."""
    if new is None or new <= (old or 0) or old is None:
        return False
    return int(log10(new)) > (int(log10(old)) if old else -1)


def _name(gpu: GpuReading) -> str:
    return f"GPU {gpu.index}" + (f" ({gpu.name})" if gpu.name else "")
