"""Rows of the exclusive mode: which batch has which GPUs, and the step that it has reached.

Each change of a step is one transaction. The next pass reads everything from these rows, so that a
process may be killed at any step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import floor
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet

from monitor.journal.rows import events
from monitor.runtime.rows.wakeups import wake
from scheduler.facts.batches import OPEN_ITEMS, RESERVING, Approval, BatchState, ExclusiveStep
from scheduler.facts.jobs import JobState
from scheduler.fair_share.rows import Rights
from scheduler.limits.quotas import rows as quota_rows
from scheduler.models import Batch, ExclusiveRun, Job, ModelInstance, ModelService

# Shares are fractions that add up to 1 only nearly.
ROUNDING = 1e-6
_RESERVING = tuple(step.value for step in RESERVING)
TEXTS: Mapping[ExclusiveStep, str] = {
    ExclusiveStep.ANNOUNCED: "takes {gpus} in exclusive mode",
    ExclusiveStep.DRAINING: "waits for running prompts; new prompts queue",
    ExclusiveStep.UNLOADING: "has the models on its GPUs unloaded",
    ExclusiveStep.WORKING: "has {gpus} for itself",
    ExclusiveStep.RELOADING: "has the models loaded again, one after another",
    ExclusiveStep.ENDED: "has left the exclusive mode; prompts resume",
}


WAITS_FOR_APPROVAL = "the approval of an operator"


def needs_no_approval(owner: User) -> bool:
    """Whether a batch of this user may take any number of GPUs within the quota."""
    return owner.is_staff or quota_rows.of_person(owner).exclusive_batches


def gpus_by_share(owner: str, rights: Rights) -> int:
    """The number of GPUs that the fair share of a user is worth now, without fractions."""
    gpus = len(rights.snapshot.capacity.gpu_uuids)
    return floor(rights.fair_share(owner) * gpus + ROUNDING)


def begin(
    batch: Batch, chosen: Sequence[str], now: datetime, approval: Approval = Approval.NONE
) -> ExclusiveRun:
    """Let a batch wait for its GPUs. The caller opens the transaction."""
    is_asked = approval is Approval.ASKED
    if is_asked:
        text = f"{batch.owner.username} asks for the exclusive mode of {batch}"
        events.add("BATCH_EXCLUSIVE", text, now=now, owner=batch.owner.username)
    return ExclusiveRun.objects.create(
        batch=batch,
        since=now,
        chosen=list(chosen),
        approval=approval.value,
        waits_for=WAITS_FOR_APPROVAL if is_asked else "",
    )


def pending(person: User) -> QuerySet[ExclusiveRun]:
    """Requests for exclusive mode that wait for an operator: all for operators, else one's own."""
    rows = ExclusiveRun.objects.exclude(step=ExclusiveStep.ENDED.value)
    rows = rows.filter(approval=Approval.ASKED.value, stopped_by="").order_by("batch_id")
    rows = rows.select_related("batch__owner")
    return rows if person.is_staff else rows.filter(batch__owner=person)


def approve(batch: Batch, by: str, now: datetime) -> bool:
    """Let a batch take the GPUs that it asks for. False: it does not ask, or not any more."""
    with transaction.atomic():
        rows = ExclusiveRun.objects.filter(pk=batch.pk, approval=Approval.ASKED.value)
        rows = rows.filter(stopped_by="").exclude(step=ExclusiveStep.ENDED.value)
        if not rows.update(approval=Approval.APPROVED.value, approved_by=by, waits_for=""):
            return False
        text = f"{by} approved the exclusive mode of {batch}"
        events.add("BATCH_EXCLUSIVE", text, now=now, owner=batch.owner.username)
        wake("scheduler")
        wake("live")
    return True


def open_runs(host: str) -> list[ExclusiveRun]:
    """Runs of this host, or of none yet, in the order of their batches."""
    rows = ExclusiveRun.objects.exclude(step=ExclusiveStep.ENDED.value)
    return list(rows.filter(host__in=("", host)).order_by("batch_id"))


def locked(run: ExclusiveRun, host: str) -> ExclusiveRun | None:
    """The run for this transaction alone; None: it is over, or another host has it."""
    rows = ExclusiveRun.objects.select_for_update(of=("self",)).select_related("batch__owner")
    rows = rows.exclude(step=ExclusiveStep.ENDED.value)
    return rows.filter(pk=run.pk, host__in=("", host)).first()


def active(host: str) -> int | None:
    """The batch that has GPUs of this host for itself."""
    rows = ExclusiveRun.objects.filter(host=host, step__in=_RESERVING)
    return rows.order_by("batch_id").values_list("batch_id", flat=True).first()


def own_jobs(batch_id: int) -> set[int]:
    """The open jobs of the batch's items, and of its workers."""
    rows = Job.objects.filter(batch_items__batch=batch_id, batch_items__status__in=OPEN_ITEMS)
    workers = Batch.objects.values_list("workers", flat=True).get(pk=batch_id)
    return {*rows.values_list("pk", flat=True), *map(int, workers)}


def idle_jobs() -> set[int]:
    """Open jobs of idle work: they leave their GPU for items."""
    rows = Job.objects.exclude(state=JobState.FINISHED.value).exclude(idle_template="")
    return set(rows.values_list("pk", flat=True))


def move(run: ExclusiveRun, step: ExclusiveStep, now: datetime, **columns: Any) -> None:
    """Begin the next step. The caller has locked the run."""
    run.step, run.since, run.waits_for, run.waits_for_batch = step.value, now, "", None
    run.log = [*run.log, [step.value, now.isoformat()]]
    for name, value in columns.items():
        setattr(run, name, value)
    run.save()
    count = len(run.gpu_uuids)
    gpus = "1 GPU" if count == 1 else f"{count} GPUs"
    text = f"Batch {run.batch.pk} {run.batch.name} {TEXTS[step].format(gpus=gpus)}"
    owner = run.batch.owner.username
    events.add("BATCH_EXCLUSIVE", text, now=now, host=run.host, owner=owner)
    wake("scheduler")
    wake("live")


def note_wait(run: ExclusiveRun, text: str, batch: int | None) -> None:
    """Store what a run waits for, if that is news."""
    if (run.waits_for, run.waits_for_batch) != (text, batch):
        run.waits_for, run.waits_for_batch = text, batch
        run.save(update_fields=["waits_for", "waits_for_batch"])
        wake("live")


def close_models(run: ExclusiveRun, instances: Sequence[ModelInstance]) -> list[dict[str, Any]]:
    """Send these instances no new requests, and boot no others of their services.

    Returns what is to be loaded again after the batch, in this order.
    """
    ModelInstance.objects.filter(pk__in=[row.pk for row in instances]).update(is_closed=True)
    services = {row.service_id for row in instances}
    ModelService.objects.filter(pk__in=services).update(held_for_batch=run.pk)
    wake("prompts")
    return [{"service": row.service_id, "gpus": list(row.gpu_uuids)} for row in instances]


def open_models(run: ExclusiveRun) -> None:
    """Let models that have not left serve again, and let their services boot."""
    ModelInstance.objects.filter(
        is_closed=True, host=run.host, service__held_for_batch=run.pk
    ).update(is_closed=False)
    ModelService.objects.filter(held_for_batch=run.pk).update(held_for_batch=None)
    wake("prompts")


def stop(batch: Batch, by: str, now: datetime) -> bool:
    """End the exclusive mode of a batch, which goes on sharing GPUs. False: it was not in it."""
    with transaction.atomic():
        run = ExclusiveRun.objects.select_for_update().filter(pk=batch.pk, stopped_by="")
        if not run.exclude(step=ExclusiveStep.ENDED.value).update(stopped_by=by):
            return False
        Batch.objects.filter(pk=batch.pk).update(gpu_mode="shared")
        waiting = Job.objects.filter(exclusive_batch=batch.pk, state=JobState.QUEUED.value)
        waiting.filter(model_service=None).update(exclusive_batch=None)
        text = f"{by} ended the exclusive mode of {batch}"
        events.add("BATCH_EXCLUSIVE", text, now=now, owner=batch.owner.username)
        wake("scheduler")
        wake("live")
    return True


def is_over(run: ExclusiveRun) -> bool:
    """Whether the batch needs no GPU any more."""
    return run.batch.state != BatchState.RUNNING.value
