"""REST: the log of a job, wherever it is."""

from __future__ import annotations

from pathlib import Path

from django.http import HttpRequest
from ninja.errors import HttpError

from scheduler.hosts.pages import elsewhere, not_read
from scheduler.hosts.probes import Unreachable
from scheduler.lifecycle.probes import logs as job_logs
from scheduler.lifecycle.probes.logs import LogPiece
from scheduler.models import Attempt

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


def log_piece(
    request: HttpRequest,
    attempt: Attempt | None,
    path: Path,
    offset: int,
    limit: int,
    tail: int | None,
) -> LogPiece:
    """From the other host, if one has it. 409 with its address if it does not answer."""
    log = elsewhere(attempt, path)
    if log is None:
        return job_logs.tail(path, tail) if tail else job_logs.read(path, offset, limit)
    if not log.address:
        raise HttpError(409, not_read(log, request.get_full_path(), None))
    try:
        return log.tail(tail) if tail else log.read(offset, limit)
    except Unreachable as error:
        raise HttpError(409, not_read(log, request.get_full_path(), error)) from None
