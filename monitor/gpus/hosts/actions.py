"""Operator actions on a host: drain, enable, disable, confirm that it is down, remove."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from monitor.facts.hosts import HostFact, HostState
from monitor.gpus.hosts import policy, rows
from monitor.journal.rows import audit, events
from monitor.runtime.rows.wakeups import wake

REASON_LIMIT = 200
WORDS = {
    HostState.ACTIVE: "enabled",
    HostState.DRAINED: "drained",
    HostState.DISABLED: "disabled",
}


def change(name: str, state: HostState, by: str, reason: str, now: datetime) -> bool:
    """False: the host had that state already."""
    reason = " ".join(reason.split())[:REASON_LIMIT]
    with transaction.atomic():
        if not rows.set_state(name, state, by, reason, now):
            return False
        why = f": {reason}" if reason else ""
        _tell("HOST_CHANGED", f"{by} {WORDS[state]} the host {name}{why}.", name, by, now)
    return True


def confirm_down(host: HostFact, by: str, now: datetime) -> str | None:
    """Let jobs with `requeue` start on other hosts. Returns why not; None = done.

    A host that still sends readings is not down.
    """
    if host.seen_at is not None and policy.silent_since(host, now) is None:
        return f"{host.name} still sends readings, so it is not down."
    with transaction.atomic():
        if not rows.confirm_down(host.name, by, now):
            return f"{host.name} was confirmed down already."
        text = f"{by} confirmed that the host {host.name} is down."
        _tell("HOST_DOWN", text, host.name, by, now, "warning")
    return None


def remove(host: HostFact, by: str, now: datetime) -> str | None:
    """Forget a host that has no contact. Returns why not; None = done."""
    if host.seen_at is not None and policy.silent_since(host, now) is None:
        return f"gpucoord runs on {host.name}. Stop it first."
    with transaction.atomic():
        rows.remove(host.name)
        _tell("HOST_REMOVED", f"{by} removed the host {host.name}.", host.name, by, now)
    return None


def make_token(by: str, now: datetime) -> str:
    """A join token for one host, valid for a day."""
    with transaction.atomic():
        text = rows.make_token(by, now)
        audit.note("JOIN_TOKEN_MADE", f"{by} made a join token.", by=by, now=now)
    return text


def _tell(kind: str, text: str, name: str, by: str, now: datetime, severity: str = "info") -> None:
    audit.note(kind, text, by=by, now=now, subject=f"host {name}")
    events.add(kind, text, now=now, host=name, severity=severity)
    wake("scheduler")
    wake("live")
