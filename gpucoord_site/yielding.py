"""For jobs written in Python: notice in time that the GPU is wanted, save, and leave.

    from gpucoord_site.yielding import checkpoint_folder, leave_saved, should_yield

    for step in range(first_step(checkpoint_folder()), steps):
        train(step)
        if should_yield():
            save(checkpoint_folder() / "last.pt")
            leave_saved()

Standard library only, no Django: it may also be copied beside a job that runs where gpucoord is not
installed. Outside gpucoord `should_yield` is always False.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

SAVED = 85


def should_yield() -> bool:
    """Whether the job was asked to leave its GPU. Cheap: ask after each step."""
    path = os.environ.get("GPUCOORD_YIELD_FILE")
    return path is not None and os.path.exists(path)  # noqa: PTH110 - half as dear as Path


def why() -> str:
    """Why it is to leave; "" when it need not."""
    return str(_request().get("reason", ""))


def seconds_left() -> float | None:
    """Until it is killed; None when it need not leave."""
    deadline = _request().get("deadline")
    return None if deadline is None else max(0.0, float(deadline) - time.time())


def checkpoint_folder() -> Path:
    """Files saved here are there when the job runs again; outside gpucoord the current folder."""
    return Path(os.environ.get("GPUCOORD_CHECKPOINT_DIR", "."))


def leave_saved() -> NoReturn:
    """End the job saying that its work is saved: it waits for a GPU, and runs again."""
    sys.exit(SAVED)


def _request() -> dict[str, Any]:
    try:
        request = json.loads(Path(os.environ["GPUCOORD_YIELD_FILE"]).read_bytes())
    except (KeyError, OSError, ValueError):
        return {}
    return request if isinstance(request, dict) else {}
