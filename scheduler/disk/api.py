"""REST: the space of the watched folders of each host."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Router, Schema, Status
from ninja.errors import HttpError

from monitor import tasks
from monitor.api import PlainText, RequestBody, body_of, caller
from monitor.pages.requests import InvalidInput
from monitor.thresholds import rows as thresholds
from scheduler.disk import steps
from scheduler.disk.policy import DiskLevel, DiskPolicy
from scheduler.models import CleaningRun

router = Router()


class DiskLine(Schema):
    host: str
    path: str
    role: str = Field(description="data, checkpoints or added (by the policy).")
    level: DiskLevel = Field(description="normal, warning, cleaning, blocked or unknown.")
    since: datetime = Field(description="Since when it has this level.")
    used_pct: float | None = Field(description="As df counts it; null: it cannot be read.")
    used_bytes: int | None
    available_bytes: int | None
    problem: str | None = Field(description="Why it cannot be read.")
    at: datetime = Field(description="Time of the reading.")


class Disks(Schema):
    warn_pct: float
    clean_pct: float
    block_pct: float
    disks: list[DiskLine]


@router.get("", response=Disks, summary="List watched folders", url_name="disks-api")
def list_disks(request: HttpRequest) -> dict[str, Any]:
    """Thresholds in percent used; 100 = never."""
    policy = thresholds.current(DiskPolicy)
    lines = [
        body_of(DiskLine, row, since=row.since_at, problem=row.problem or None)
        for row in steps.watched_disks()
    ]
    return body_of(Disks, policy, disks=lines)


class CleanBody(RequestBody):
    host: PlainText = Field("", max_length=100, description="Empty: the host that answers.")
    path: PlainText = Field(
        "", max_length=1000, description="A watched folder; empty: all of the host."
    )
    dry_run: bool = Field(True, description="Only list what would be deleted.")


class CleanedFile(Schema):
    rule: str
    path: str
    bytes: int
    modified: float = Field(description="Seconds since 1970.")
    copied: bool = Field(description="It is deleted only after its copy is verified.")
    result: str


class CleanAnswer(Schema):
    id: int
    host: str
    path: str = Field(description="Empty: all watched folders.")
    dry_run: bool
    state: str = Field(description="waiting, running, done or failed.")
    asked_by: str
    asked_at: datetime
    ended_at: datetime | None
    candidates: int = Field(description="Files that the rules allow to delete.")
    candidate_bytes: int
    freed_bytes: int = Field(description="Of a dry run: what a clean-up would free.")
    results: dict[str, int] = Field(description="Files by result.")
    problems: list[str]
    files: list[CleanedFile] = Field(description="The first 500.")


@router.post("clean/", response={201: CleanAnswer}, summary="Clean up disks", url_name="clean")
def clean(request: HttpRequest, body: CleanBody) -> Status[dict[str, Any]]:
    """Operators only. The answer is the run; GET /api/disks/clean/ID/ follows it."""
    here, host = settings.CONFIG.node, body.host or settings.CONFIG.node
    now, by = timezone.now(), _operator(request)
    if host != here and not steps.watched_disks(host):
        raise HttpError(404, f"There is no host {host}.")
    queue = tasks.queue if host == here else None
    try:
        run = steps.clean(host, body.path, dry_run=body.dry_run, by=by, now=now, queue=queue)
    except steps.UnknownFolder as error:
        raise InvalidInput([("path", str(error))]) from None
    except steps.Busy as error:
        raise HttpError(409, str(error)) from None
    return Status(201, _answer(run))


@router.get("clean/{run_id}/", response=CleanAnswer, summary="Show a clean-up", url_name="cleaning")
def show(request: HttpRequest, run_id: int) -> dict[str, Any]:
    """Operators only."""
    _operator(request)
    return _answer(get_object_or_404(CleaningRun, pk=run_id))


def _operator(request: HttpRequest) -> str:
    user = caller(request)
    if not user.is_staff:
        raise HttpError(403, "Only operators may clean up.")
    return str(user.get_username())


def _answer(run: CleaningRun) -> dict[str, Any]:
    return body_of(CleanAnswer, run, results=run.figures, files=run.listed)
