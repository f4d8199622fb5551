"""Edge: the names of what lies in an attempt's folder, and how its small files are written.

    spec.json     what to run, written before the runner starts
    claimed       who may run this attempt: made once, by the runner or by who gives it up
    started.json  the runner's and the job's identity
    result.json   how it ended
    output.log    stdout and stderr, in order

Standard library only: the runner imports it without Django.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

SPEC = "spec.json"
CLAIMED = "claimed"
STARTED = "started.json"
RESULT = "result.json"
LOG = "output.log"


def jobs_folder(data: Path) -> Path:
    return data / "jobs"


def job_folder(data: Path, job_id: int) -> Path:
    return jobs_folder(data) / str(job_id)


def attempt_folder(data: Path, job_id: int, number: int) -> Path:
    return job_folder(data, job_id) / str(number)


def log_path(data: Path, job_id: int, number: int) -> Path:
    return attempt_folder(data, job_id, number) / LOG


def make_folder(folder: Path) -> None:
    """Make an attempt's folder, readable by the service's account alone."""
    for path in (folder.parent.parent, folder.parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)


def write_json(path: Path, body: dict[str, Any]) -> None:
    """Write the file as a whole or not at all; only the service's account may read it."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    _write(part, body)
    part.replace(path)


def _write(path: Path, body: dict[str, Any]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps(body))


def read_json(path: Path) -> dict[str, Any] | None:
    """The file's object; None when there is none, or it is not one."""
    try:
        body = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return body if isinstance(body, dict) else None


def read_tail(path: Path, most: int) -> bytes:
    """The last bytes of a file; nothing of one that is not there."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most))
            return file.read(most)
    except OSError:
        return b""


def claim(folder: Path, body: dict[str, Any]) -> bool:
    """Take the attempt, once and for all: True for exactly one caller.

    The file appears with its content (a link, not a create), so that who reads it
    always learns who holds the attempt.
    """
    part = folder / f"{CLAIMED}.{os.getpid()}"
    _write(part, body)
    try:
        os.link(part, folder / CLAIMED)
    except FileExistsError:
        return False
    else:
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
