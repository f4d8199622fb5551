"""REST: the mode of each host, and what holds starts back there."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone
from ninja import Field, Router, Schema
from ninja.errors import HttpError

from scheduler import modes, throttling
from scheduler.models import ModeState
from scheduler.plans import Throttle
from scheduler.policy.mode import Mode

router = Router()


class ModeBody(Schema):
    """What to set. An operator's word holds for `hours`; automatic ends it."""

    mode: Literal["automatic", "cooperative", "defensive"]
    hours: float = Field(4, gt=0, le=720)
    host: str | None = Field(None, description="Default: the host that answers.")


class ModeLine(Schema):
    host: str
    mode: Literal["cooperative", "defensive"]
    since: datetime
    reason: str
    automatic: Literal["cooperative", "defensive"] = Field(
        description="What it would be without an operator's word."
    )
    automatic_reason: str
    set_by: str | None
    set_until: datetime | None


class ThrottleLine(Schema):
    """What holds starts back on a host now."""

    host: str
    closed: dict[str, str] = Field(description="Why no job of a priority class may start.")
    closed_gpus: dict[str, dict[str, str]] = Field(description="The same, by class and GPU.")
    starts: int | None = Field(description="How many more may start on GPUs; null: any.")
    multipliers: dict[str, float] = Field(
        description="By GPU, what quotas count it as; 0: not ours."
    )
    reason: str = Field(description="Why some are below 1.")


@router.get("mode/", response=list[ModeLine], summary="See the mode", url_name="mode")
def list_modes(request: HttpRequest) -> list[dict[str, Any]]:
    """Cooperative, or defensive because hogs were there for long."""
    return [_mode(row) for row in modes.shown(settings.CONFIG.node)]


@router.post("mode/", response=ModeLine, summary="Set the mode", url_name="mode")
def set_mode(request: HttpRequest, body: ModeBody) -> dict[str, Any]:
    """For operators."""
    user = request.auth  # type: ignore[attr-defined]
    if not user.is_staff:
        raise HttpError(403, "Only operators may set the mode.")
    host = body.host or settings.CONFIG.node
    if host != settings.CONFIG.node and modes.mode_of(host) is None:
        raise HttpError(404, f"There is no host {host}.")
    now = timezone.now()
    mode = None if body.mode == "automatic" else Mode(body.mode)
    until = None if mode is None else now + timedelta(hours=body.hours)
    return _mode(modes.override(host, mode, until, by=user.get_username(), now=now))


@router.get("throttle/", response=list[ThrottleLine], summary="See what holds starts back")
def list_throttles(request: HttpRequest) -> list[dict[str, Any]]:
    """Of each host, as its controller last looked."""
    return [_throttle(host, allowed) for host, _, allowed, _ in throttling.shown()]


def _mode(row: ModeState) -> dict[str, Any]:
    return {
        "host": row.host,
        "mode": row.mode,
        "since": row.since_at,
        "reason": row.reason,
        "automatic": row.automatic,
        "automatic_reason": row.automatic_reason,
        "set_by": row.override_by or None,
        "set_until": row.override_until,
    }


def _throttle(host: str, allowed: Throttle) -> dict[str, Any]:
    return {
        "host": host,
        "closed": {kind.value: blocker.text for kind, blocker in allowed.closed.items()},
        "closed_gpus": {
            kind.value: {uuid: blocker.text for uuid, blocker in gpus.items()}
            for kind, gpus in allowed.closed_gpus.items()
        },
        "starts": allowed.starts,
        "multipliers": dict(allowed.multipliers),
        "reason": allowed.reason,
    }
