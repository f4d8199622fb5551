"""Step: the files of jobs that ended long ago go, a little at a time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from django.db.models import Max, QuerySet, Sum

from monitor import policies
from scheduler.jobs import JobState
from scheduler.models import Attempt
from scheduler.policy.keeping import KeepingPolicy, Kept, to_clear
from scheduler.runner import clearing, own_folders

# So many folders are measured at once.
MEASURED = 500


@dataclass(frozen=True, slots=True)
class Clearer:
    """`step(now)` works for at most `seconds`; what is left is for the next time."""

    host: str
    data: Path
    checkpoints: Path | None = None
    seconds: float = 4.0

    def step(self, now: datetime) -> list[int]:
        """Returns the jobs whose files went."""
        until = time.monotonic() + self.seconds
        logs, *others = roots = own_folders.roots(self.data, self.checkpoints)
        self._measure(logs, others, until)
        due = self._due("files_bytes", logs, now) | {
            job for root in others[:1] for job in self._due("saved_bytes", root, now)
        }
        gone = []
        for job in sorted(due):
            if time.monotonic() >= until:
                break
            moved = [clearing.move_aside(root, str(job)) for root in roots]
            if all(moved):
                self._ended().filter(job_id=job).update(files_gone_at=now)
                gone.append(job)
        for root in roots:
            clearing.empty(root, until)
        return gone

    def _ended(self) -> QuerySet[Attempt]:
        """Attempts here whose files are there, though their job will not run again."""
        return Attempt.objects.filter(
            host=self.host, files_gone_at=None, job__state=JobState.FINISHED.value
        )

    def _due(self, column: str, root: Path, now: datetime) -> set[int]:
        """By what lies in one folder, on its disk."""
        rows = self._ended().order_by().values_list("job_id")
        kept = [Kept(*row) for row in rows.annotate(Max("job__ended_at"), Sum(column))]
        policy = policies.current(KeepingPolicy)
        return {one.job_id for one in to_clear(kept, policy, clearing.disk_bytes(root), now)}

    def _measure(self, logs: Path, others: list[Path], until: float) -> None:
        """What each ended job's files take, once: it changes no more."""
        new = self._ended().filter(files_bytes=None).order_by("job_id")
        for job in new.values_list("job_id", flat=True).distinct()[:MEASURED]:
            if time.monotonic() >= until:
                return
            name, rows = str(job), new.filter(job_id=job)
            saved = sum(clearing.size_of(root, name, until) for root in others)
            size = clearing.size_of(logs, name, until)
            # Written once for all its attempts here.
            first = rows.order_by("number").values_list("pk", flat=True)[0]
            rows.exclude(pk=first).update(files_bytes=0, saved_bytes=0)
            rows.filter(pk=first).update(files_bytes=size, saved_bytes=saved)
