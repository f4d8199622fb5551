"""REST: the mode of each host, and what limits starts there."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone
from ninja import Field, Router, Schema
from ninja.errors import HttpError

from monitor.api import PlainText, RequestBody, body_of, caller
from scheduler.facts.plans import Throttle
from scheduler.limits.throttle import step as throttle_rows
from scheduler.limits.throttle.policy.throttle import Mode
from scheduler.models import ModeState
from scheduler.queue import wording as blocker_wording

router = Router()


class ModeBody(RequestBody):
    """The mode to set. It holds for `hours`; automatic ends it."""

    mode: Literal["automatic", "cooperative", "defensive"]
    hours: float = Field(4, gt=0, le=720)
    host: PlainText | None = Field(
        None, max_length=100, description="Default: the host that answers."
    )


class ModeLine(Schema):
    host: str
    mode: Literal["cooperative", "defensive"]
    since: datetime
    reason: str
    automatic: Literal["cooperative", "defensive"] = Field(
        description="The mode without an operator's override."
    )
    automatic_reason: str
    set_by: str | None
    set_until: datetime | None


class ThrottleLine(Schema):
    """The current limits of starts on a host."""

    host: str
    closed: dict[str, str] = Field(description="Why no job of a priority class may start.")
    closed_gpus: dict[str, dict[str, str]] = Field(description="The same, by class and GPU.")
    starts: int | None = Field(description="How many more may start on GPUs; null: any.")
    multipliers: dict[str, float] = Field(
        description="By GPU, what quotas count it as; 0: not ours."
    )
    reason: str = Field(description="Why some are below 1.")


@router.get("mode/", response=list[ModeLine], summary="Show the mode", url_name="mode")
def list_modes(request: HttpRequest) -> list[dict[str, Any]]:
    """Cooperative, or defensive after long overuse."""
    return [_mode(row) for row in throttle_rows.shown_modes(settings.CONFIG.node)]


@router.post("mode/", response=ModeLine, summary="Set the mode", url_name="mode")
def set_mode(request: HttpRequest, body: ModeBody) -> dict[str, Any]:
    """Operators only."""
    user = caller(request)
    if not user.is_staff:
        raise HttpError(403, "Only operators may set the mode.")
    host = body.host or settings.CONFIG.node
    if host != settings.CONFIG.node and throttle_rows.mode_of(host) is None:
        raise HttpError(404, f"There is no host {host}.")
    now = timezone.now()
    mode = None if body.mode == "automatic" else Mode(body.mode)
    until = None if mode is None else now + timedelta(hours=body.hours)
    return _mode(throttle_rows.override(host, mode, until, by=user.get_username(), now=now))


@router.get("throttle/", response=list[ThrottleLine], summary="Show the limits of starts")
def list_throttles(request: HttpRequest) -> list[dict[str, Any]]:
    """Backpressure and multipliers of each host, from its last controller pass."""
    return [_throttle(host, allowed) for host, _, allowed, _ in throttle_rows.shown()]


def _mode(row: ModeState) -> dict[str, Any]:
    return body_of(
        ModeLine,
        row,
        since=row.since_at,
        set_by=row.override_by or None,
        set_until=row.override_until,
    )


def _throttle(host: str, allowed: Throttle) -> dict[str, Any]:
    return {
        "host": host,
        "closed": {
            kind.value: blocker_wording.text(blocker) for kind, blocker in allowed.closed.items()
        },
        "closed_gpus": {
            kind.value: {uuid: blocker_wording.text(blocker) for uuid, blocker in gpus.items()}
            for kind, gpus in allowed.closed_gpus.items()
        },
        "starts": allowed.starts,
        "multipliers": dict(allowed.multipliers),
        "reason": allowed.reason,
    }
