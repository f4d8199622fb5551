"""REST: GPUs and processes, as the newest snapshot of each host has them, and events."""

from __future__ import annotations

from datetime import datetime
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from django.conf import settings
from django.http import HttpRequest
from ninja import Query, Router, Schema
from ninja.errors import HttpError
from pydantic import AwareDatetime, Field

from monitor import events, store
from monitor.event_kinds import EVENTS, known
from monitor.models import Event
from monitor.policy import capability
from monitor.policy.privacy import Viewer, event_text, redact
from monitor.readings import GpuReading, ProcessReading, Snapshot
from monitor.use_facts import UseSource

router = Router()


class HostBody(Schema):
    """Where and when the figures were read."""

    name: str
    as_of: datetime
    probe: str = Field(description="nvml, none, or simulated: then no figure is real.")
    problem: str | None = Field(description="Why the GPUs can't be read.")
    remedy: str | None


class GuestBody(Schema):
    """Somebody who uses a GPU for themselves. until: when jobs may start again, once they left."""

    user: str | None
    program: str | None
    came_at: datetime | None
    until: datetime | None


class GpuBody(Schema):
    """null = not known; it is never reported as 0."""

    uuid: str
    index: int
    host: str
    name: str | None
    state: str | None
    state_since: datetime | None
    health: str
    closed: str | None = Field(description="Why it takes no new work though it is well.")
    condition: str | None = Field(description="healthy, throttled, failing or lost.")
    condition_since: datetime | None
    condition_reason: str | None
    problem: str | None
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    utilization_pct: float | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: float | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    performance_state: int | None
    pci_id: str | None
    compute_capability: str | None
    architecture: str | None
    power: float | None = Field(description="A rank among models: H100 2000, A100 624, …")
    power_estimated: bool = Field(description="From cores and clock: a model in no table.")
    jobs: list[str] = Field(description="Jobs that hold it, by id.")
    guest: GuestBody | None = Field(description="Whom jobs give way to there.")


class ProcessBody(Schema):
    host: str
    gpu_uuid: str
    pid: int
    user: str | None = Field(description="null = the owner is not known.")
    program: str | None
    command: list[str] | None = Field(description="Only of your own; operators see all.")
    memory_bytes: int | None
    sm_pct: float | None = Field(
        description="Its share of the GPU's time; null = unknown, 0 = known to be idle."
    )
    source: UseSource = Field(description="How that share is known.")
    container: str | None
    instance: int | None = Field(description="The MIG instance that it is in.")
    job: str | None
    job_owner: str | None
    created_at: datetime | None


class EventBody(Schema):
    """Something that happened. `kind` is a name that never changes."""

    id: int
    at: datetime
    kind: str
    severity: str
    text: str = Field(description="Details of faults only for their owners and operators.")
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
    found = store.newest_all()
    return {
        "hosts": [_host(snapshot) for snapshot in found],
        "gpus": [gpu for snapshot in found for gpu in _gpus(snapshot)],
    }


@router.get("processes/", response=Processes, summary="List the processes", url_name="processes")
def list_processes(request: HttpRequest) -> dict[str, Any]:
    """Every process on every GPU. A process on two GPUs stands here twice."""
    viewer = _viewer(request)
    found = [redact(snapshot, viewer) for snapshot in store.newest_all()]
    return {
        "hosts": [_host(snapshot) for snapshot in found],
        "processes": [_process(p, snapshot) for snapshot in found for p in snapshot.processes],
    }


@router.get("events/", response=Events, summary="List events", url_name="events")
def list_events(
    request: HttpRequest,
    kind: Annotated[
        str, Query(description="Only of this kind, such as GPU_LOST, or group, such as GPUs.")
    ] = "",
    severity: Annotated[
        Literal["", "info", "warning", "error"], Query(description="This and worse.")
    ] = "",
    since: Annotated[AwareDatetime | None, Query(description="Only from then on.")] = None,
    until: Annotated[AwareDatetime | None, Query(description="Only before then.")] = None,
    gpu: Annotated[str, Query(description="Only of the GPU with this UUID.")] = "",
    job: Annotated[str, Query(description="Only of the job with this id.")] = "",
    owner: Annotated[str, Query(description="Only of this person.")] = "",
    host: Annotated[str, Query(description="Only of this host.")] = "",
    skip: Annotated[int, Query(ge=0, le=1_000_000, description="Leave out the newest.")] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> dict[str, Any]:
    """What happened, the newest first."""
    if kind and kind not in EVENTS and kind not in known():
        close = get_close_matches(kind.upper(), known(), 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise HttpError(422, f"There is no kind of event {kind}.{hint}")
    wanted = {"kind": kind, "gpu_uuid": gpu, "job_ref": job, "owner": owner, "host": host}
    # No name has a NUL, and PostgreSQL would not even look for one.
    asked = {name: value.replace("\0", "\ufffd") for name, value in wanted.items()}
    viewer = _viewer(request)
    found = events.recent(limit, least=severity, since=since, until=until, skip=skip, **asked)
    return {"events": [_event(event, viewer) for event in found]}


def _viewer(request: HttpRequest) -> Viewer:
    user = request.auth  # type: ignore[attr-defined]
    return Viewer(user.get_username(), user.is_staff)


def _event(event: Event, viewer: Viewer) -> dict[str, Any]:
    return {
        "id": event.pk,
        "at": event.at,
        "kind": event.kind,
        "severity": event.severity,
        "text": event_text(event.kind, event.text, event.owner, viewer),
        "host": event.host or None,
        "gpu_uuid": event.gpu_uuid or None,
        "job": event.job_ref or None,
        "owner": event.owner or None,
    }


def _host(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "name": snapshot.host.name,
        "as_of": snapshot.at,
        "probe": snapshot.probe,
        "problem": snapshot.problem,
        "remedy": snapshot.remedy,
    }


def _gpus(snapshot: Snapshot) -> list[dict[str, Any]]:
    holders: dict[str, list[str]] = {}
    for claim in store.open_claims(snapshot.host.name):
        holders.setdefault(claim.gpu_uuid, []).append(claim.job_ref)
    return [_gpu(gpu, snapshot, holders.get(gpu.uuid, [])) for gpu in snapshot.gpus]


def _gpu(gpu: GpuReading, snapshot: Snapshot, jobs: list[str]) -> dict[str, Any]:
    can = capability.of(gpu, settings.CONFIG.gpu_power)
    return {
        **{name: getattr(gpu, name, None) for name in GpuBody.model_fields},
        "architecture": can.architecture,
        "power": can.power,
        "power_estimated": can.power_estimated,
        "host": snapshot.host.name,
        "jobs": jobs,
        "guest": snapshot.guest(gpu.uuid),
    }


def _process(process: ProcessReading, snapshot: Snapshot) -> dict[str, Any]:
    return {
        **{name: getattr(process, name, None) for name in ProcessBody.model_fields},
        "host": snapshot.host.name,
        "job": process.job_ref,
    }
