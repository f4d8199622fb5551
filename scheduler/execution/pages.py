"""Jobs of other hosts on pages and in REST: contact with the host, and their logs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core import signing
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from monitor.facts.readings import HostFact
from monitor.gpus.policy import hosts as host_policy
from monitor.gpus.rows import hosts as host_rows
from scheduler.execution.probes import LARGEST, SIZE, START, RemoteLog, Unreachable
from scheduler.jobs import probes as job_logs
from scheduler.limits.time_windows.policy import moment
from scheduler.models import Attempt
from scheduler.runner import files

# The annotation of an attempt with the last reading of its host.
SEEN = "host_seen_at"
# Hosts of one database have the same secret key.
SALT, LIVES = "gpucoord.log-of-another-host", timedelta(minutes=2)
LOG_ANSWER = {
    200: {
        "description": "The bytes as the job wrote them.",
        "headers": {
            "X-Log-Next-Offset": {"schema": {"type": "integer"}, "description": "Go on here."},
            "X-Log-Size": {"schema": {"type": "integer"}},
            "X-Job-State": {
                "schema": {"type": "string"},
                "description": "finished: what follows X-Log-Next-Offset is all there will be.",
            },
        },
        "content": {"text/plain": {"schema": {"type": "string"}}},
    },
    409: {
        "description": "The log is on another host, which does not answer; `detail` names it.",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    },
    410: {
        "description": "The log was removed.",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    },
}


def silent_hosts(attempts: Iterable[Attempt | None]) -> dict[str, datetime]:
    """Hosts of open attempts without contact, with the time of their last reading.

    The attempts may be annotated with `host_seen_at`. Otherwise this asks the database, but only
    about hosts other than this one.
    """
    others = [a for a in attempts if a is not None and a.ended_at is None]
    others = [a for a in others if a.host != settings.CONFIG.node]
    annotated = [HostFact(name=a.host, seen_at=vars(a)[SEEN]) for a in others if SEEN in vars(a)]
    unknown = {a.host for a in others} - {host.name for host in annotated}
    now = timezone.now()
    hosts = [*annotated, *(host_rows.registered(unknown) if unknown else ())]
    since = {host.name: host_policy.silent_since(host, now) for host in hosts}
    return {name: at for name, at in since.items() if at is not None}


def contact(attempt: Attempt | None) -> str:
    """A sentence while contact with the host of a running job is lost; else empty."""
    silent = silent_hosts([attempt])
    if attempt is None or attempt.host not in silent:
        return ""
    host = host_rows.find(attempt.host)
    since = moment(silent[attempt.host], settings.TIME_ZONE)
    return host_policy.contact_sentence(host, since) if host else ""


def elsewhere(attempt: Attempt | None, file: Path) -> RemoteLog | None:
    """The log of an attempt of another host; None: it is here.

    Folders of jobs may be on storage that the hosts share; then the file is read here.
    """
    if attempt is None or attempt.host == settings.CONFIG.node or file.exists():
        return None
    # An unregistered name may be an earlier one of this host.
    hosts = host_rows.registered([attempt.host])
    if not hosts:
        return None
    facts = {"host": attempt.host, "job": attempt.job_id, "number": attempt.number}

    def ticket(offset: int, limit: int) -> str:
        return signing.dumps({**facts, "offset": offset, "limit": limit}, salt=SALT)

    host = hosts[0]
    return RemoteLog(
        attempt.host, host.log_address, attempt.job_id, attempt.number, ticket, host.address
    )


def not_read(log: RemoteLog, path: str, error: Unreachable | None) -> str:
    """Why a log of another host is not shown, and where it is. `path`: the same page there."""
    text = host_policy.elsewhere(log.host, log.pages, path)
    return text if error is None else f"{text} That host can't be asked: {error}."


@login_not_required
@never_cache
@require_safe
def signed_log(_request: HttpRequest, ticket: str) -> HttpResponse:
    """A piece of a log for another host of this database."""
    return log_answer(ticket)


def log_answer(ticket: str) -> HttpResponse:
    """A piece of a log. The other host has checked the user's rights; the database is not read."""
    try:
        request = signing.loads(ticket, salt=SALT, max_age=LIVES)
    except signing.BadSignature:
        return HttpResponse("The ticket is not valid.\n", status=403, content_type="text/plain")
    if request["host"] != settings.CONFIG.node:
        return HttpResponse("This is another host.\n", status=404, content_type="text/plain")
    path = files.log_path(Path(settings.DATA), request["job"], request["number"])
    offset, limit = request["offset"], min(request["limit"], LARGEST)
    piece = job_logs.tail(path, limit) if offset < 0 else job_logs.read(path, offset, limit)
    answer = HttpResponse(piece.data, content_type="application/octet-stream")
    answer[START], answer[SIZE] = str(piece.start), str(piece.size)
    return answer
