"""Buttons on a GPU's page, for operators: pause, resume, end the quarantine."""

from __future__ import annotations

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone
from django.views.decorators.http import require_POST

from monitor.api import posted_text, viewer_of
from monitor.gpus import rows as gpu_actions
from monitor.models import Gpu


@require_POST
def pause(request: HttpRequest, uuid: str) -> HttpResponse:
    gpu, by = _operated(request, uuid)
    reason = posted_text(request, "reason", gpu_actions.REASON_LIMIT)
    done = gpu_actions.pause(gpu, by, reason, timezone.now())
    return _back(request, gpu, done, "accepts no new jobs", "is paused already")


@require_POST
def resume(request: HttpRequest, uuid: str) -> HttpResponse:
    gpu, by = _operated(request, uuid)
    done = gpu_actions.resume(gpu, by, timezone.now())
    return _back(request, gpu, done, "accepts jobs again", "was not paused")


@require_POST
def release(request: HttpRequest, uuid: str) -> HttpResponse:
    gpu, by = _operated(request, uuid)
    done = gpu_actions.release(gpu, by, timezone.now())
    return _back(request, gpu, done, "is out of quarantine", "was in no quarantine")


def _operated(request: HttpRequest, uuid: str) -> tuple[Gpu, str]:
    viewer = viewer_of(request)
    if not viewer.operator:
        raise PermissionDenied
    return get_object_or_404(Gpu, uuid=uuid), viewer.username


def _back(request: HttpRequest, gpu: Gpu, done: bool, result: str, already: str) -> HttpResponse:
    if done:
        messages.success(request, f"GPU {gpu.index} {result}.")
    else:
        messages.info(request, f"GPU {gpu.index} {already}.")
    return redirect("gpu", gpu.uuid)
