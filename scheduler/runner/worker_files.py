"""Edge: how the service gives items to the workers of a batch on its host, and reads answers.

programs/worker.py describes the files. Their folder belongs to the job's account, and outlives the
jobs of the workers. Without the scheduler, workers go on with the items at hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from monitor.facts import input_rules
from scheduler.facts.batches import Answer
from scheduler.facts.jobs import LARGEST_RESULT
from scheduler.runner import files
from scheduler.runner.programs import worker
from scheduler.runner.yield_files import READABLE

LARGEST_LIST = 8 * 1024**2
TOO_LARGE = f"The answer is larger than {LARGEST_RESULT // 1024} KiB."
UNREADABLE = "The answer can't be read."
_NAME = re.compile(r"batch-(\d{1,18})")


def folder_name(batch: int) -> str:
    """Of the folder of a batch, beside those of jobs."""
    return f"batch-{batch}"


@dataclass(frozen=True, slots=True)
class WorkerFiles:
    """The files of a batch on this host, in a folder of the job's account."""

    folder: Path

    def publish(self, body: Mapping[str, Any]) -> None:
        """Write the list of items, if it has changed."""
        path = self.folder / worker.LIST
        text = json.dumps(body).encode()
        if files.read_given(path, LARGEST_LIST) != text:
            # Only its account can enter the folder.
            files.write_private(path, text, READABLE)

    def answer(self, index: int, attempt: int) -> Answer | None:
        """None: no worker has taken this try of the item."""
        text = files.read_given(self.folder / f"{index}.{attempt}", LARGEST_RESULT + 1)
        return _answer(text) if text else None


def _answer(text: bytes) -> Answer:
    """An account may write anything there; a file that makes no sense fails its item."""
    if len(text) > LARGEST_RESULT:
        return Answer(ended=0.0, error=TOO_LARGE)
    try:
        body = input_rules.parse_json(text)
        job, attempt, began = int(body["job"]), int(body["attempt"]), float(body["began"])
        ended = float(body["ended"]) if "ended" in body else None
        if not (isfinite(began) and isfinite(ended or 0.0)):
            return Answer(ended=0.0, error=UNREADABLE)
    except (ValueError, TypeError, KeyError, OverflowError):
        return Answer(ended=0.0, error=UNREADABLE)
    error = body.get("error")
    return Answer(
        job=job,
        attempt=attempt,
        began=began,
        ended=ended,
        output=body.get("output"),
        error=None if error is None else str(error),
        returned=body.get("returned") is True,
    )


def batches_with_files(roots: list[Path]) -> Iterator[tuple[Path, int]]:
    """The folders of batches in these, each with its number."""
    for root in roots:
        for path in root.glob("batch-*"):
            if match := _NAME.fullmatch(path.name):
                yield root, int(match[1])
