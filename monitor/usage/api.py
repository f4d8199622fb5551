"""REST: the processes of the user who asks, and since when each holds GPU memory idle."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils import timezone
from ninja import Router, Schema
from pydantic import Field

from monitor.api import body_of
from monitor.gpus.rows import snapshot as snapshots
from monitor.usage.pages import views
from monitor.usage.pages.views import CurrentUse

router = Router()


class OwnProcess(Schema):
    """A process on a GPU; one on two GPUs is listed twice."""

    host: str
    gpu: int = Field(description="Index of the GPU.")
    gpu_uuid: str
    pid: int
    program: str | None
    command: list[str] | None
    memory_bytes: int | None
    sm_pct: float | None = Field(description="Share of the GPU's time; null: unknown.")
    idle_since: datetime | None = Field(
        description="Since then it holds memory and computes nothing, at most 24 h back;"
        " null: it is not idle, holds little, or its use is unknown."
    )
    job: str | None


class Mine(Schema):
    processes: list[OwnProcess]


@router.get("mine/", response=Mine, summary="List your own processes", url_name="mine")
def mine(request: HttpRequest) -> dict[str, Any]:
    """The idle ones first, then by memory."""
    name = request.auth.get_username()  # type: ignore[attr-defined]
    newest = snapshots.newest_all()
    return {
        "processes": [_process(use) for use in views.own_processes(newest, name, timezone.now())]
    }


def _process(use: CurrentUse) -> dict[str, Any]:
    return body_of(
        OwnProcess,
        use.row,
        host=use.host,
        gpu=use.index,
        gpu_uuid=use.gpu_uuid,
        command=use.command,
        idle_since=use.idle_since,
        job=use.row.job_ref,
    )
