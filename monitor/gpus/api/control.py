"""REST for operators: pause or resume a GPU, or end its quarantine."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Router, Schema
from ninja.errors import HttpError

from monitor.api import PlainLines, RequestBody
from monitor.gpus import actions as gpu_actions
from monitor.models import Gpu

router = Router()


class PauseBody(RequestBody):
    reason: PlainLines = Field(
        "", max_length=gpu_actions.REASON_LIMIT, description="Visible to all users."
    )


class Closed(Schema):
    gpu_uuid: str
    changed: bool = Field(description="false: it was in this state already.")


@router.post("{uuid}/pause/", response=Closed, summary="Pause a GPU", url_name="gpu-pause")
def pause(request: HttpRequest, uuid: str, body: PauseBody) -> dict[str, Any]:
    """Operators only. No new job starts on the GPU; running jobs continue."""
    gpu, by = _gpu(request, uuid)
    return {"gpu_uuid": uuid, "changed": gpu_actions.pause(gpu, by, body.reason, timezone.now())}


@router.post("{uuid}/resume/", response=Closed, summary="End a pause", url_name="gpu-resume")
def resume(request: HttpRequest, uuid: str) -> dict[str, Any]:
    """Operators only. Jobs may start on the GPU again."""
    gpu, by = _gpu(request, uuid)
    return {"gpu_uuid": uuid, "changed": gpu_actions.resume(gpu, by, timezone.now())}


@router.post("{uuid}/release/", response=Closed, summary="End a quarantine", url_name="gpu-release")
def release(request: HttpRequest, uuid: str) -> dict[str, Any]:
    """Operators only. Jobs may start again although memory of an ended job is not free."""
    gpu, by = _gpu(request, uuid)
    return {"gpu_uuid": uuid, "changed": gpu_actions.release(gpu, by, timezone.now())}


def _gpu(request: HttpRequest, uuid: str) -> tuple[Gpu, str]:
    user = request.auth  # type: ignore[attr-defined]
    if not user.is_staff:
        raise HttpError(403, "Only operators may do this.")
    return get_object_or_404(Gpu, uuid=uuid), user.get_username()
