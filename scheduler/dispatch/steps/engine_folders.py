"""Edge of the step: the folder of a task's attempt, and facts of the task that only it has."""

from __future__ import annotations

from pathlib import Path

from scheduler.execution.steps.specs import SpecWriter
from scheduler.models import Attempt, EngineTask
from scheduler.runner import attempt_files


def attempt_of(task: EngineTask) -> Attempt:
    """The attempt as it is before the engine has started it."""
    return Attempt(
        job=task.job,
        number=task.number,
        host=task.host,
        nonce=task.nonce,
        engine=task.engine,
        engine_ref=task.ref,
        gpu_uuids=[],
    )


class TaskFolders:
    """Reads the folders of tasks."""

    def __init__(self, specs: SpecWriter) -> None:
        self._specs = specs

    def uid_of(self, task: EngineTask) -> int | None:
        """Of the account that has the folder of the attempt; None: there is none."""
        try:
            return self._folder(task).stat().st_uid
        except OSError:
            return None

    def ref_of(self, task: EngineTask) -> str:
        """The engine's task in which the runner of the attempt is; "" = none has claimed it."""
        claimed = attempt_files.read_claim(self._folder(task), task.nonce)
        return claimed.engine_ref if claimed is not None and claimed.runner else ""

    def _folder(self, task: EngineTask) -> Path:
        return self._specs.folder(attempt_of(task))
