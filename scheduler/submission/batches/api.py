"""REST: batches and their items."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from django.db.models import QuerySet
from django.http import Http404, HttpRequest
from django.utils import timezone
from ninja import Query, Router, Schema
from ninja.errors import HttpError
from ninja.responses import Status
from pydantic import Field, create_model

from monitor.api import RequestBody, body_of, caller
from scheduler.facts.field_types import Door
from scheduler.facts.job_fields import fields_of
from scheduler.facts.scripts import MOST_ITEMS, Approval, BatchState, ExclusiveStep, ItemState
from scheduler.models import Batch, BatchItem, ExclusiveRun
from scheduler.submission.batches import actions, policy, rows
from scheduler.submission.intake.api import field_schema

router = Router()

_Fields: Any = create_model(  # type: ignore[call-overload]
    "_Fields",
    __base__=RequestBody,
    **{
        field.name: field_schema(field)
        for field in fields_of(Door.REST)
        if field.name not in actions.NOT_FOR_ITEMS
    },
)


class NewBatchBody(_Fields):  # type: ignore[misc]  # its fields follow from the table
    """A command or script for many items. The fields of a job apply to each item."""

    items: list[str] = Field(
        description=f"At most {MOST_ITEMS}. Each job has its item in GPUCOORD_ITEM."
        " The worker of a script gets them one by one."
    )
    gpu_mode: Literal["shared", "exclusive"] | None = Field(
        None,
        description="exclusive: models leave their GPUs for the batch. Without a quota that allows"
        " it, on as many GPUs as your share is worth, or once an operator approves it. null: by the"
        " number of items, if a quota allows exclusive batches.",
    )
    only_gpus: list[str] = Field(
        [], description="GPUs that exclusive mode may take, as UUIDs or numbers; [] = all."
    )


class StepBody(Schema):
    step: ExclusiveStep
    at: datetime


class ExclusiveBody(Schema):
    step: ExclusiveStep
    since: datetime
    host: str | None
    gpus: list[str] = Field(description="UUIDs of the GPUs that the batch has for itself.")
    models_to_load: int = Field(description="Number of models that load again after the batch.")
    waits_for: str | None
    stopped_by: str | None
    approval: Approval
    approved_by: str | None
    steps: list[StepBody] = Field(description="The steps so far.")


class ItemBatchLine(Schema):
    id: int
    name: str
    owner: str
    script: str | None
    state: BatchState
    gpu_mode: str
    total_items: int
    completed: int
    failed: int
    created_at: datetime
    ended_at: datetime | None


class ItemBatchBody(ItemBatchLine):
    queued: int
    assigned: int
    running: int
    cancelled: int
    eta: datetime | None = Field(description="Expected end; null: unknown.")
    workers: list[int] | None = Field(
        description="Open jobs that answer its items one by one; null: each item becomes a job."
    )
    exclusive: ExclusiveBody | None = Field(description="null: the batch was always shared.")


class ItemBatchPage(Schema):
    batches: list[ItemBatchLine]
    total: int


class ItemBody(Schema):
    index: int
    input: str
    status: ItemState
    attempt: int = Field(description="How many jobs have been made for it, or workers had it.")
    job: int | None
    gpu: str | None = Field(description="UUID of its GPU.")
    result: Any = Field(None, description="At most 8 KiB; the job of an item has a larger one.")
    error: str | None


class ItemPage(Schema):
    items: list[ItemBody]
    total: int


class Cancelled(Schema):
    id: int
    state: BatchState
    cancelled: int = Field(description="Number of items that had not ended.")


class Shared(Schema):
    id: int
    state: BatchState
    gpu_mode: str


class Retried(Schema):
    id: int
    state: BatchState
    retried: int = Field(description="Number of failed items that wait again.")


@router.post("", response={201: ItemBatchBody}, summary="Submit a batch", url_name="batches")
def submit(request: HttpRequest, new: NewBatchBody) -> Status[dict[str, Any]]:
    """Items become jobs as GPUs free up, or the workers of the script answer them.

    422: each of `errors` about an item has its `index`.
    """
    raw = new.model_dump()
    items, mode, gpus = raw.pop("items"), raw.pop("gpu_mode"), raw.pop("only_gpus")
    batch = actions.submit(raw, items, mode, caller(request), timezone.now(), gpus)
    return Status(201, body(batch))


@router.get("", response=ItemBatchPage, summary="List batches", url_name="batches")
def list_batches(
    request: HttpRequest,
    state: Annotated[BatchState | None, Query()] = None,
    owner: Annotated[str | None, Query(description="A user's name, or me.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
) -> dict[str, Any]:
    """Newest first."""
    batches = Batch.objects.select_related("owner").order_by("-id")
    if state is not None:
        batches = batches.filter(state=state.value)
    if owner:
        name = caller(request).username if owner == "me" else owner.replace("\0", " ")
        batches = batches.filter(owner__username=name)
    page = [line(batch) for batch in batches[offset : offset + limit]]
    return {"batches": page, "total": batches.count()}


@router.get("{int:batch_id}/", response=ItemBatchBody, summary="Show a batch", url_name="batch")
def see(request: HttpRequest, batch_id: int) -> dict[str, Any]:
    """Its state, and how many items have which status."""
    return body(_batch(batch_id))


@router.get("{int:batch_id}/items/", response=ItemPage, summary="List items", url_name="items")
def items(
    request: HttpRequest,
    batch_id: int,
    status: Annotated[ItemState | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
) -> dict[str, Any]:
    """In their order. Only the owner and operators see them."""
    batch = _own(request, batch_id, "see the items of")
    chosen: QuerySet[BatchItem] = batch.items.order_by("index")
    if status is not None:
        chosen = chosen.filter(status=status.value)
    page = [_item(item) for item in chosen[offset : offset + limit]]
    return {"items": page, "total": chosen.count()}


@router.post("{int:batch_id}/cancel/", response=Cancelled, summary="Cancel a batch")
def cancel(request: HttpRequest, batch_id: int) -> dict[str, Any]:
    """Waiting items end at once; running jobs get SIGTERM, then SIGKILL. Idempotent."""
    batch = _own(request, batch_id, "cancel")
    count = rows.cancel(batch, caller(request).username, timezone.now())
    batch.refresh_from_db()
    return {"id": batch.pk, "state": batch.state, "cancelled": count}


@router.post("{int:batch_id}/retry-failed/", response=Retried, summary="Retry failed items")
def retry_failed(request: HttpRequest, batch_id: int) -> dict[str, Any]:
    """The failed items wait again, also of a batch that has ended. Idempotent."""
    batch = _own(request, batch_id, "retry items of")
    count = rows.retry_failed(batch)
    batch.refresh_from_db()
    return {"id": batch.pk, "state": batch.state, "retried": count}


@router.post("{int:batch_id}/share/", response=Shared, summary="End exclusive mode")
def share(request: HttpRequest, batch_id: int) -> dict[str, Any]:
    """Models load again, and the batch goes on sharing GPUs. Declines a request. Idempotent."""
    batch = _own(request, batch_id, "end the exclusive mode of")
    rows.stop(batch, caller(request).username, timezone.now())
    batch.refresh_from_db()
    return {"id": batch.pk, "state": batch.state, "gpu_mode": batch.gpu_mode}


@router.post(
    "{int:batch_id}/approve-exclusive/", response=ItemBatchBody, summary="Approve exclusive mode"
)
def approve_exclusive(request: HttpRequest, batch_id: int) -> dict[str, Any]:
    """Operators only: the batch may take the GPUs that it asks for. Idempotent."""
    batch, person = _batch(batch_id), caller(request)
    if not person.is_staff:
        raise HttpError(403, "Only operators may approve the exclusive mode of a batch.")
    rows.approve(batch, person.username, timezone.now())
    return body(batch)


def line(batch: Batch) -> dict[str, Any]:
    owner, script = batch.owner.username, batch.script or None
    return body_of(ItemBatchLine, batch, owner=owner, script=script)


def body(batch: Batch) -> dict[str, Any]:
    by_status = rows.counts(batch)
    eta = policy.expected_end(rows.pace(batch, by_status), timezone.now())
    counts = {name: by_status[name] for name in ("queued", "assigned", "running", "cancelled")}
    run = ExclusiveRun.objects.filter(pk=batch.pk).first()
    return {
        **line(batch),
        **counts,
        "eta": eta,
        "workers": None if batch.work is None else sorted(map(int, batch.workers)),
        "exclusive": run and _exclusive(run),
    }


def _exclusive(run: ExclusiveRun) -> dict[str, Any]:
    return body_of(
        ExclusiveBody,
        run,
        host=run.host or None,
        gpus=run.gpu_uuids,
        models_to_load=len(run.reloads),
        waits_for=run.waits_for or None,
        stopped_by=run.stopped_by or None,
        approved_by=run.approved_by or None,
        steps=[{"step": step, "at": at} for step, at in run.log],
    )


def _item(item: BatchItem) -> dict[str, Any]:
    gpu, error = item.gpu_uuid or None, item.error or None
    return body_of(ItemBody, item, job=item.job_id, gpu=gpu, error=error)


def _batch(batch_id: int) -> Batch:
    row = Batch.objects.select_related("owner").filter(pk=min(batch_id, 2**62)).first()
    if row is None:
        raise Http404(f"There is no batch {batch_id}.")
    return row


def _own(request: HttpRequest, batch_id: int, action: str) -> Batch:
    batch, person = _batch(batch_id), caller(request)
    if batch.owner_id != person.pk and not person.is_staff:
        owner = batch.owner.username
        raise HttpError(403, f"Only {owner} and operators may {action} this batch.")
    return batch
