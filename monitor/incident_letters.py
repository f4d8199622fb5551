"""What messages say of an incident: to operators what it is, to its owner what helps."""

from __future__ import annotations

from monitor.models import Incident
from monitor.policy.alerting import AlertPolicy
from monitor.policy.incident_words import Told, to_owner


def told(incident: Incident) -> Told:
    """Said to the one whom it concerns."""
    return to_owner(
        incident.rule,
        program=incident.program,
        gpu=f"GPU {incident.gpu.index}" if incident.gpu else "this machine",
        memory_bytes=incident.memory_bytes,
        mean_pct=incident.mean_pct,
        since_at=incident.since_at,
        last_seen_at=incident.last_seen_at,
        waited_jobs=incident.waited_jobs,
        job_ref=incident.job_ref,
    )


def first_line(incident: Incident, *, is_owner: bool) -> str:
    """What changes while it goes on."""
    return told(incident).text if is_owner else incident.text


def letter(incident: Incident, policy: AlertPolicy, *, is_owner: bool) -> str:
    page = link(policy, f"/incidents/{incident.pk}/")
    first = first_line(incident, is_owner=is_owner)
    if not is_owner:
        return f"{first}\n{page}".rstrip()
    what = f"Process {incident.pid} on {incident.host}." if incident.pid else incident.host
    return "\n".join([first, what, "", told(incident).advice, asked(page)])


def asked(page: str) -> str:
    """How an owner answers."""
    return f"Is it needed? Say so on the page of the incident, or ask an operator.\n{page}".rstrip()


def link(policy: AlertPolicy, path: str) -> str:
    """The address of a page, where gpucoord knows its own."""
    return policy.address.rstrip("/") + path if policy.address else ""
