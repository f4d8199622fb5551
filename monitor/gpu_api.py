"""REST, for operators: pause a GPU, let it work again, end its quarantine."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Router, Schema
from ninja.errors import HttpError

from monitor import pausing
from monitor.models import Gpu

router = Router()


class PauseBody(Schema):
    reason: str = Field("", max_length=pausing.REASON_LIMIT, description="Told to everyone.")


class Closed(Schema):
    gpu_uuid: str
    changed: bool = Field(description="false: it was so already.")


@router.post("{uuid}/pause/", response=Closed, summary="Pause a GPU", url_name="gpu-pause")
def pause(request: HttpRequest, uuid: str, body: PauseBody) -> dict[str, Any]:
    """Operators: nothing new starts on it, what runs there may end."""
    gpu, by = _gpu(request, uuid)
    return {"gpu_uuid": uuid, "changed": pausing.pause(gpu, by, body.reason, timezone.now())}


@router.post("{uuid}/resume/", response=Closed, summary="End a pause", url_name="gpu-resume")
def resume(request: HttpRequest, uuid: str) -> dict[str, Any]:
    """Operators: work may start on it again."""
    gpu, by = _gpu(request, uuid)
    return {"gpu_uuid": uuid, "changed": pausing.resume(gpu, by, timezone.now())}


@router.post("{uuid}/release/", response=Closed, summary="End a quarantine", url_name="gpu-release")
def release(request: HttpRequest, uuid: str) -> dict[str, Any]:
    """Operators: work may start on it again, though a job's memory there is not back."""
    gpu, by = _gpu(request, uuid)
    return {"gpu_uuid": uuid, "changed": pausing.release(gpu, by, timezone.now())}


def _gpu(request: HttpRequest, uuid: str) -> tuple[Gpu, str]:
    user = request.auth  # type: ignore[attr-defined]
    if not user.is_staff:
        raise HttpError(403, "Only operators may do this.")
    return get_object_or_404(Gpu, uuid=uuid), user.get_username()
