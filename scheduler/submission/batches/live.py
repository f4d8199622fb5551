"""Running batches as pages show them: progress, GPUs, and the lengths of the queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from monitor.facts.claims import GpuTask
from monitor.facts.readings import GpuReading
from monitor.gpus.snapshot import rows as snapshots
from monitor.pages.live.cards import STATES
from monitor.runtime.rows.prepared import compiled_once
from scheduler.facts.batches import BatchState, ExclusiveStep
from scheduler.facts.jobs import JobState
from scheduler.facts.prompts import PromptStatus
from scheduler.models import Batch, ExclusiveRun, Job, Prompt
from scheduler.submission.batches import policy
from scheduler.submission.batches.rows import batches as rows

MOST_BATCHES = 4
# Of a host with more GPUs, only those of the batch are listed.
MOST_GPUS = 16
STEP_WORDS: Mapping[ExclusiveStep, str] = {
    ExclusiveStep.WAITING: "Waits for {waits_for}",
    ExclusiveStep.ANNOUNCED: "Announced: models on its GPUs stop taking prompts soon",
    ExclusiveStep.DRAINING: "New prompts queue, running prompts finish",
    ExclusiveStep.UNLOADING: "Models leave its GPUs",
    ExclusiveStep.WORKING: "Its GPUs run items of the batch only",
    ExclusiveStep.RELOADING: "Models load again, one after another",
    ExclusiveStep.ENDED: "Prompts have resumed",
}


@dataclass(frozen=True, slots=True)
class BatchGpu:
    """A GPU beside a batch, with its state as on its card.

    percent: of the job on it; ends_at: its expected end. since: when its state began. completed:
    the requests of its model, or the items of its worker.
    """

    uuid: str
    label: str
    state: str
    shape: str
    is_own: bool
    content: str = ""
    percent: int | None = None
    ends_at: datetime | None = None
    since: datetime | None = None
    completed: str = ""


@dataclass(frozen=True, slots=True)
class Queues:
    prompts: int
    jobs: int
    items: int


@dataclass(frozen=True, slots=True)
class BatchPanel:
    """A running batch, or one whose exclusive mode has not ended. step: "" = it shares GPUs."""

    id: int
    name: str
    owner: str
    completed: int
    failed: int
    total: int
    percent: str
    eta: datetime | None
    step: str = ""
    step_text: str = ""
    step_since: datetime | None = None
    gpus: tuple[BatchGpu, ...] = ()

    @property
    def mode(self) -> str:
        """A batch that waits for its GPUs shares others meanwhile."""
        is_shared = self.step in ("", ExclusiveStep.WAITING.value)
        return "BATCH (shared)" if is_shared else "BATCH (exclusive)"


def running(now: datetime) -> tuple[BatchPanel, ...]:
    """The oldest running batches, without their GPUs."""
    if not _running():
        return ()
    rows = Batch.objects.filter(state=BatchState.RUNNING.value).select_related("owner")
    return tuple(panel(batch, None, now) for batch in rows.order_by("id")[:MOST_BATCHES])


def load(now: datetime) -> dict[str, Any]:
    runs = {run.pk: run for run in _open_runs()}
    if not runs and not _running():
        return {"batches": (), "queues": None}
    running_rows = Batch.objects.filter(state=BatchState.RUNNING.value)
    batches = (
        (running_rows | Batch.objects.filter(pk__in=runs)).select_related("owner").order_by("id")
    )
    chosen = sorted(batches[:50], key=lambda batch: (batch.pk not in runs, batch.pk))
    panels = tuple(panel(batch, runs.get(batch.pk), now) for batch in chosen[:MOST_BATCHES])
    return {"batches": panels, "queues": queues() if panels else None}


@compiled_once
def _open_runs() -> QuerySet[ExclusiveRun]:
    return ExclusiveRun.objects.exclude(step=ExclusiveStep.ENDED.value).order_by("batch_id")


@compiled_once
def _running() -> QuerySet[Batch]:
    """One of the running batches, if there is any."""
    return Batch.objects.filter(state=BatchState.RUNNING.value).order_by("id")[:1]


def panel(batch: Batch, run: ExclusiveRun | None, now: datetime) -> BatchPanel:
    eta = policy.expected_end(rows.running_pace(batch), now)
    facts = BatchPanel(
        id=batch.pk,
        name=batch.name,
        owner=batch.owner.username,
        completed=batch.completed,
        failed=batch.failed,
        total=batch.total_items,
        percent=f"{100 * batch.completed / max(1, batch.total_items):.3g}",
        # Whole minutes: the region changes no more often.
        eta=eta.replace(second=0, microsecond=0) if eta else None,
    )
    if run is None or run.step == ExclusiveStep.ENDED.value:
        return facts
    step = ExclusiveStep(run.step)
    return BatchPanel(
        **{name: getattr(facts, name) for name in _SHARED},
        step=step.value,
        step_text=STEP_WORDS[step].format(waits_for=run.waits_for or "its turn"),
        step_since=run.since,
        gpus=gpus_of(run),
    )


_SHARED = ("id", "name", "owner", "completed", "failed", "total", "percent", "eta")


def gpus_of(run: ExclusiveRun) -> tuple[BatchGpu, ...]:
    """The GPUs of the host of an exclusive run; of a large host, those that the batch has."""
    snapshot = snapshots.newest(run.host) if run.host else None
    readings: Sequence[GpuReading] = snapshot.gpus if snapshot else ()
    if len(readings) > MOST_GPUS:
        readings = [gpu for gpu in readings if gpu.uuid in run.gpu_uuids]
    tasks = snapshots.gpu_tasks()
    return tuple(_gpu(gpu, run, tasks.get(gpu.uuid, ())) for gpu in readings)


def _gpu(gpu: GpuReading, run: ExclusiveRun, tasks: Sequence[GpuTask]) -> BatchGpu:
    task = tasks[0] if tasks else None
    word, shape = STATES[gpu.state] if gpu.state else ("unknown", "unknown")
    return BatchGpu(
        uuid=gpu.uuid,
        label=f"GPU {gpu.index}",
        state=word,
        shape=shape,
        is_own=gpu.uuid in run.gpu_uuids,
        content=task.name if task else "",
        percent=None if task is None or task.progress is None else int(task.progress * 100),
        ends_at=task.ends_at if task else None,
        since=gpu.state_since,
        completed=task.completed if task else "",
    )


def queues() -> Queues:
    """Waiting prompts, waiting jobs, and items that have no job yet."""
    jobs = Job.objects.filter(state=JobState.QUEUED.value, model_service=None)
    prompts = Prompt.objects.filter(status=PromptStatus.QUEUED.value)
    return Queues(prompts=prompts.count(), jobs=jobs.count(), items=rows.queued_items())
