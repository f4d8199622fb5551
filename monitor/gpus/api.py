"""REST: GPUs and processes from the newest snapshot of each host, and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from django.conf import settings
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Query, Router, Schema
from ninja.errors import HttpError
from pydantic import create_model

from monitor.api import Moment, PlainLines, RequestBody, body_of, calling_viewer
from monitor.facts.accounts import ClaimKind, GpuTask
from monitor.facts.readings import (
    GPU_FIELDS,
    DiskReading,
    GpuReading,
    HostFact,
    OwnerSource,
    ProcessReading,
    Snapshot,
    UseSource,
)
from monitor.gpus.policy import capability, changes, states
from monitor.gpus.policy import hosts as host_policy
from monitor.gpus.policy.changes import UseSplit
from monitor.gpus.rows import closures as gpu_closures
from monitor.gpus.rows import hosts as host_rows
from monitor.gpus.rows import snapshot as snapshots
from monitor.gpus.rows.snapshot import Bookings
from monitor.journal.facts import EVENTS, event_kinds
from monitor.journal.rows import events
from monitor.models import Event, Gpu
from monitor.owners.policy import Viewer, event_text, redact
from monitor.pages.requests import InvalidInput

# REST for operators: pause or resume a GPU, or end its quarantine.


gpu_router = Router()


class PauseBody(RequestBody):
    reason: PlainLines = Field(
        "", max_length=gpu_closures.REASON_LIMIT, description="Visible to all users."
    )


class Closed(Schema):
    gpu_uuid: str
    changed: bool = Field(description="false: it was in this state already.")


@gpu_router.post("{uuid}/pause/", response=Closed, summary="Pause a GPU", url_name="gpu-pause")
def pause(request: HttpRequest, uuid: str, body: PauseBody) -> dict[str, Any]:
    """Operators only. No new job starts on the GPU; running jobs continue."""
    gpu, by = _gpu_of_operator(request, uuid)
    return {"gpu_uuid": uuid, "changed": gpu_closures.pause(gpu, by, body.reason, timezone.now())}


@gpu_router.post("{uuid}/resume/", response=Closed, summary="End a pause", url_name="gpu-resume")
def resume(request: HttpRequest, uuid: str) -> dict[str, Any]:
    """Operators only. Jobs may start on the GPU again."""
    gpu, by = _gpu_of_operator(request, uuid)
    return {"gpu_uuid": uuid, "changed": gpu_closures.resume(gpu, by, timezone.now())}


@gpu_router.post(
    "{uuid}/release/", response=Closed, summary="End a quarantine", url_name="gpu-release"
)
def release(request: HttpRequest, uuid: str) -> dict[str, Any]:
    """Operators only. Jobs may start again although memory of an ended job is not free."""
    gpu, by = _gpu_of_operator(request, uuid)
    return {"gpu_uuid": uuid, "changed": gpu_closures.release(gpu, by, timezone.now())}


def _gpu_of_operator(request: HttpRequest, uuid: str) -> tuple[Gpu, str]:
    viewer = calling_viewer(request)
    if not viewer.operator:
        raise HttpError(403, "Only operators may do this.")
    return get_object_or_404(Gpu, uuid=uuid), viewer.username


# REST: CPU, memory and disks of hosts, from the newest snapshot of each.


host_router = Router()


class DiskBody(Schema):
    mount: str
    total_bytes: int
    free_bytes: int = Field(description="Available to ordinary users.")
    used_pct: float | None


class PressureBody(Schema):
    """Pressure stall information: percent of the last 10 s in which some or all tasks waited."""

    cpu_some_pct: float | None
    memory_some_pct: float | None
    memory_full_pct: float | None
    io_some_pct: float | None
    io_full_pct: float | None


class HostUsage(Schema):
    """null = not known; it is never reported as 0."""

    name: str
    as_of: datetime
    cpu_count: int | None = Field(description="CPUs of the machine.")
    cpu_limit: float | None = Field(description="CPU limit of the container or pod.")
    cpu_pct: float | None = Field(description="Percentage of the usable CPUs.")
    cpu_idle_seconds: float | None = Field(
        description="Time since the use of the CPUs fell below 5 %; 0: they are in use."
    )
    load_1: float | None
    load_5: float | None
    load_15: float | None
    memory_total_bytes: int | None = Field(
        description="Usable memory: the limit of the container or pod."
    )
    memory_available_bytes: int | None
    memory_used_pct: float | None
    swap_total_bytes: int | None
    swap_used_bytes: int | None
    disks: list[DiskBody]
    disk_read_bps: float | None = Field(description="Bytes per second.")
    disk_write_bps: float | None
    pressure: PressureBody
    gpus: int
    state: str = Field(
        description="active; drained: no new jobs start there; disabled: its service does not"
        " start either."
    )
    version: str | None = Field(description="Version of gpucoord at its last start.")
    address: str | None = Field(description="Address of its pages.")
    silent_since: datetime | None = Field(
        description="Its last reading, if that is more than 15 s old: contact is lost."
    )
    confirmed_down_at: datetime | None = Field(description="An operator confirmed that it is down.")
    jobs_share_pct: float | None = Field(description="Share of all GPU time that jobs use.")
    others_share_pct: float | None = Field(description="Share that other processes use.")
    probe: str = Field(description="nvml, none or simulated (no value is real).")
    problem: str | None = Field(description="Why the GPUs can't be read.")


class Hosts(Schema):
    hosts: list[HostUsage]


@host_router.get("", response=Hosts, summary="List the hosts", url_name="hosts")
def list_hosts(request: HttpRequest) -> dict[str, Any]:
    """CPU, memory and disks of each host that has sent a reading."""
    now, registered = timezone.now(), {host.name: host for host in host_rows.all_hosts()}
    return {
        "hosts": [
            _host_line(snapshot) | _registered(registered[snapshot.host.name], now)
            for snapshot in snapshots.newest_all()
            if snapshot.host.name in registered
        ]
    }


def _registered(host: HostFact, now: datetime) -> dict[str, Any]:
    return {
        "state": host.state.value,
        "version": host.version or None,
        "address": host.address or None,
        "silent_since": host_policy.silent_since(host, now),
        "confirmed_down_at": host.down_at,
    }


def _host_line(snapshot: Snapshot) -> dict[str, Any]:
    host = snapshot.host
    total, available = host.memory_total_bytes, host.memory_available_bytes
    split = changes.of_host(snapshot)
    used = None if total is None or available is None else total - available
    return {
        **{name: getattr(host, name, None) for name in HostUsage.model_fields},
        "as_of": snapshot.at,
        "cpu_limit": host.limits.cpus,
        "cpu_idle_seconds": host.cpu_idle_s(snapshot.at),
        "memory_used_pct": _pct(used, total),
        "disks": [_disk(disk) for disk in host.disks],
        "gpus": len(snapshot.gpus),
        "jobs_share_pct": split.jobs_pct,
        "others_share_pct": split.others_pct,
        "probe": snapshot.probe,
        "problem": snapshot.problem,
    }


def _disk(disk: DiskReading) -> dict[str, Any]:
    return {
        "mount": disk.mount,
        "total_bytes": disk.total_bytes,
        "free_bytes": disk.free_bytes,
        "used_pct": None if disk.used_pct is None else round(disk.used_pct, 1),
    }


def _pct(part: int | None, whole: int | None) -> float | None:
    return None if part is None or not whole else round(100 * part / whole, 1)


router = Router()


class HostBody(Schema):
    """Host and time of the readings."""

    name: str
    as_of: datetime
    probe: str = Field(description="nvml, none or simulated (no value is real).")
    problem: str | None = Field(description="Why the GPUs can't be read.")
    remedy: str | None


class GuestBody(Schema):
    """A user at the GPU. until: the time at which jobs may start again after the user has left."""

    user: str | None
    program: str | None
    came_at: datetime | None
    until: datetime | None


class TaskBody(Schema):
    """A job or a model on a GPU."""

    job_ref: str
    name: str
    owner: str
    progress: float | None = Field(description="0 to 1; null: the job reports none.")
    ends_at: datetime | None = Field(description="Expected end (median); null: unknown.")
    tasks_completed: int | None = Field(
        description="Requests that the model has answered, or items that the worker of a batch has"
        " completed; null: it is neither."
    )
    kind: Literal["script", "llm"] = Field(description="llm: a model that stays loaded.")


class _GpuIdentity(Schema):
    uuid: str
    index: int
    host: str
    name: str | None
    state: str | None
    state_since: datetime | None
    health: str
    closed: str | None = Field(description="Reason why this healthy GPU takes no new jobs.")
    condition: str | None = Field(description="healthy, throttled, failing or lost.")
    condition_since: datetime | None
    condition_reason: str | None
    problem: str | None


_GpuFigures: Any = create_model(  # type: ignore[call-overload]
    "_GpuFigures",
    __base__=_GpuIdentity,
    **{figure.name: (figure.kind | None, ...) for figure in GPU_FIELDS if figure.in_rest},
)


class GpuBody(_GpuFigures):  # type: ignore[misc]  # its figures follow from the table
    """null = not known; it is never reported as 0."""

    idle_seconds: float | None = Field(
        description="Time since its utilisation fell below 5 %; 0: it is in use."
    )
    pci_id: str | None
    compute_capability: str | None
    architecture: str | None
    power: float | None = Field(description="A rank among models: H100 2000, A100 624, …")
    power_estimated: bool = Field(
        description="Estimated from cores and clock, for unlisted models."
    )
    jobs: list[str] = Field(description="Ids of the jobs that hold the GPU.")
    tasks: list[TaskBody] = Field(description="These jobs with their progress, oldest first.")
    tasks_completed: int = Field(
        description="Jobs that have succeeded on it, and requests that its models answered."
    )
    model: str | None = Field(description="The model service that has it.")
    script: str | None = Field(description="The registered script that runs on it.")
    task_id: str | None = Field(description="The number of the job; of a model, of its instance's.")
    pid: int | None = Field(description="The first process of this job.")
    port: int | None = Field(description="Where the model listens.")
    progress: float | None = Field(description="0 to 1, of this job.")
    eta: datetime | None = Field(description="The expected end of this job (median).")
    started_boot: datetime | None = Field(description="When this job was placed on it.")
    expected_ready: datetime | None = Field(description="When the model takes requests.")
    paired_with: list[int] = Field(description="The numbers of the other GPUs of this job.")
    jobs_share_pct: float | None = Field(description="Share of its time that jobs use.")
    others_share_pct: float | None = Field(description="Share that other processes use.")
    guest: GuestBody | None = Field(description="The user outside the queue who has this GPU.")
    unsupported: list[str] | None = Field(
        description="Fields that the GPU or its driver does not have; a stated memory has a value."
    )
    failed_calls: list[str] | None = Field(
        description="Calls of the driver that failed at this reading; their values are unknown."
    )


class ProcessBody(Schema):
    host: str
    gpu_uuid: str
    pid: int
    user: str | None = Field(description="null = the owner is not known.")
    program: str | None
    command: list[str] | None = Field(description="Only for your own processes; operators see all.")
    memory_bytes: int | None
    sm_pct: float | None = Field(
        description="Share of the GPU's time; null = unknown, 0 = known to be idle."
    )
    source: UseSource = Field(description="Source of that share.")
    owner_source: OwnerSource = Field(
        description="Source of the owner. A uid inside a container names no user."
    )
    container: str | None
    instance: int | None = Field(description="MIG instance.")
    job: str | None
    job_owner: str | None
    created_at: datetime | None


class EventBody(Schema):
    """An event. The names in `kind` are stable."""

    id: int
    at: datetime
    kind: str
    severity: str
    text: str = Field(description="Details of faults are visible to owners and operators.")
    host: str | None
    gpu_uuid: str | None
    job: str | None
    owner: str | None


class Events(Schema):
    events: list[EventBody]


class Gpus(Schema):
    hosts: list[HostBody]
    gpus: list[GpuBody]


class Processes(Schema):
    hosts: list[HostBody]
    processes: list[ProcessBody]


@router.get("gpus/", response=Gpus, summary="List the GPUs", url_name="gpus")
def list_gpus(request: HttpRequest) -> dict[str, Any]:
    """Every GPU with its newest reading."""
    bookings = snapshots.bookings()
    newest = [states.as_booked(each, bookings.claims) for each in snapshots.newest_all()]
    return {
        "hosts": [_host(snapshot) for snapshot in newest],
        "gpus": [gpu for snapshot in newest for gpu in _gpus(snapshot, bookings)],
    }


@router.get("processes/", response=Processes, summary="List the processes", url_name="processes")
def list_processes(request: HttpRequest) -> dict[str, Any]:
    """Every process on every GPU. A process on two GPUs is listed twice."""
    viewer = calling_viewer(request)
    newest = [redact(snapshot, viewer) for snapshot in snapshots.newest_all()]
    return {
        "hosts": [_host(snapshot) for snapshot in newest],
        "processes": [_process(p, snapshot) for snapshot in newest for p in snapshot.processes],
    }


@router.get("events/", response=Events, summary="List events", url_name="events")
def list_events(
    request: HttpRequest,
    kind: Annotated[str, Query(description="Kind, such as GPU_LOST, or group, such as GPUs.")] = "",
    severity: Annotated[
        Literal["", "info", "warning", "error"], Query(description="Minimum severity.")
    ] = "",
    since: Annotated[Moment | None, Query(description="Events from this time.")] = None,
    until: Annotated[Moment | None, Query(description="Events before this time.")] = None,
    gpu: Annotated[str, Query(description="UUID of the GPU.")] = "",
    job: Annotated[str, Query(description="Id of the job.")] = "",
    owner: Annotated[str, Query(description="User name.")] = "",
    host: Annotated[str, Query(description="Host name.")] = "",
    skip: Annotated[
        int, Query(ge=0, le=1_000_000, description="Number of newest events to skip.")
    ] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> dict[str, Any]:
    """Events, newest first."""
    if kind and kind not in EVENTS and kind not in event_kinds():
        close = get_close_matches(kind.upper(), event_kinds(), 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise InvalidInput([("kind", f"There is no such kind of event.{hint}")])
    filters = {"kind": kind, "gpu_uuid": gpu, "job_ref": job, "owner": owner, "host": host}
    viewer = calling_viewer(request)
    rows = events.recent(limit, least=severity, since=since, until=until, skip=skip, **filters)
    return {"events": [_event(event, viewer) for event in rows]}


def _event(event: Event, viewer: Viewer) -> dict[str, Any]:
    return body_of(
        EventBody,
        event,
        text=event_text(event.kind, event.text, event.owner, viewer),
        host=event.host or None,
        gpu_uuid=event.gpu_uuid or None,
        job=event.job_ref or None,
        owner=event.owner or None,
    )


def _host(snapshot: Snapshot) -> dict[str, Any]:
    return body_of(HostBody, snapshot, name=snapshot.host.name, as_of=snapshot.at)


def _gpus(snapshot: Snapshot, bookings: Bookings) -> list[dict[str, Any]]:
    tasks, completed = bookings.tasks, snapshots.completed_tasks(snapshot.host.name)
    splits = changes.by_gpu(snapshot)
    numbers = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
    return [
        _gpu(gpu, snapshot, _holders(bookings, gpu.uuid), splits[gpu.uuid])
        | _task(tasks.get(gpu.uuid, ()), numbers)
        | {"tasks": tasks.get(gpu.uuid, ()), "tasks_completed": completed.get(gpu.uuid, 0)}
        for gpu in snapshot.gpus
    ]


def _holders(bookings: Bookings, gpu_uuid: str) -> list[str]:
    """The jobs and models of a GPU."""
    open_claims = (c for c in bookings.claims.get(gpu_uuid, ()) if c.until is None)
    return [claim.job_ref for claim in open_claims if claim.kind is not ClaimKind.LOCK]


def _task(tasks: Sequence[GpuTask], numbers: Mapping[str, int]) -> dict[str, Any]:
    """The model or the oldest job of a GPU, in fields of the GPU."""
    models = [task for task in tasks if task.is_model]
    first = next(iter([*models, *tasks]), None)
    if first is None:
        return {"paired_with": []}
    return {
        "model": first.name if first.is_model else None,
        "script": first.script or None,
        "task_id": first.job_ref,
        "pid": first.pid,
        "port": first.port,
        "progress": first.progress,
        "eta": first.ends_at,
        "started_boot": first.since,
        "expected_ready": first.expected_ready,
        "paired_with": sorted(numbers[uuid] for uuid in first.paired if uuid in numbers),
    }


def _gpu(gpu: GpuReading, snapshot: Snapshot, jobs: list[str], split: UseSplit) -> dict[str, Any]:
    can = capability.of(gpu, settings.CONFIG.gpu_power)
    return {
        **{name: getattr(gpu, name, None) for name in GpuBody.model_fields},
        "architecture": can.architecture,
        "power": can.power,
        "power_estimated": can.power_estimated,
        "host": snapshot.host.name,
        "idle_seconds": gpu.idle_s(snapshot.at),
        "jobs": jobs,
        "jobs_share_pct": split.jobs_pct,
        "others_share_pct": split.others_pct,
        "guest": snapshot.guest(gpu.uuid),
    }


def _process(process: ProcessReading, snapshot: Snapshot) -> dict[str, Any]:
    return {
        **{name: getattr(process, name, None) for name in ProcessBody.model_fields},
        "host": snapshot.host.name,
        "job": process.job_ref,
    }
