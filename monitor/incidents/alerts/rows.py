"""Texts of messages about an incident, and encryption of stored channel addresses."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from django.conf import settings

from monitor.incidents.alerts.policy import AlertPolicy
from monitor.incidents.wording import IncidentSummary, to_owner
from monitor.models import Incident

if TYPE_CHECKING:
    from cryptography.fernet import Fernet


def owner_summary(incident: Incident) -> IncidentSummary:
    """The incident, worded for its owner."""
    return to_owner(
        incident.rule,
        program=incident.program,
        gpu=f"GPU {incident.gpu.index}" if incident.gpu else "this machine",
        memory_bytes=incident.memory_bytes,
        mean_pct=incident.mean_pct,
        peak_pct=incident.peak_pct,
        since_at=incident.since_at,
        last_seen_at=incident.last_seen_at,
        waited_jobs=incident.waited_jobs,
        job_ref=incident.job_ref,
    )


def first_line(incident: Incident, *, is_owner: bool) -> str:
    """The line that changes while the incident is open."""
    return owner_summary(incident).text if is_owner else incident.text


def message_text(incident: Incident, policy: AlertPolicy, *, is_owner: bool) -> str:
    page = link(policy, f"/incidents/{incident.pk}/")
    first = first_line(incident, is_owner=is_owner)
    if not is_owner:
        return f"{first}\n{page}".rstrip()
    subject = f"Process {incident.pid} on {incident.host}." if incident.pid else incident.host
    return "\n".join([first, subject, "", owner_summary(incident).advice, how_to_answer(page)])


def how_to_answer(page: str) -> str:
    """How the owner can answer."""
    text = "If you need it, explain it on the page of the incident, or contact an operator."
    return f"{text}\n{page}".rstrip()


def link(policy: AlertPolicy, path: str) -> str:
    """The address of a page; empty if the address of gpucoord is not set."""
    return policy.address.rstrip("/") + path if policy.address else ""


def encrypt(text: str) -> str:
    return _cipher().encrypt(text.encode()).decode()


def decrypt(encrypted: str) -> str | None:
    """None if the text was encrypted under another secret key, such as another host's."""
    from cryptography.fernet import InvalidToken

    try:
        return _cipher().decrypt(encrypted.encode()).decode()
    except InvalidToken:
        return None


def _cipher() -> Fernet:
    """The key is derived from the secret key and used for nothing else."""
    # 7 MB of each process that sends no alert.
    from cryptography.fernet import Fernet

    digest = hashlib.sha256(b"gpucoord channel:" + settings.SECRET_KEY.encode()).digest()
    return Fernet(base64.urlsafe_b64encode(digest))
