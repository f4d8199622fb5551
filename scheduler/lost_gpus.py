"""Part of the controller: jobs on a GPU that is lost are asked to leave, if they run again then."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q

from monitor.readings import Health, Snapshot
from scheduler import yielding
from scheduler.jobs import JobState
from scheduler.models import Attempt
from scheduler.plans import Yield

CODE = "GpuLost"


class LostGpus:
    """Who did not ask to be run again is left alone: it may have more to do than its GPU."""

    name = "lost GPUs"

    def __init__(self, host: str) -> None:
        self._host = host

    def judge(self, snapshot: Snapshot | None, now: datetime) -> list[int]:
        """Returns the jobs that were asked."""
        gpus = snapshot.gpus if snapshot else ()
        lost = {gpu.uuid: gpu.index for gpu in gpus if gpu.health is Health.LOST}
        if not lost:
            return []
        attempts = Attempt.objects.filter(
            host=self._host,
            ended_at=None,
            job__requeue=True,
            job__state=JobState.RUNNING.value,
        ).filter(Q(yield_request=None) | Q(yield_request__withdrawn_at__isnull=False))
        asked = []
        for job_id, uuids in attempts.values_list("job_id", "gpu_uuids"):
            index = next((lost[uuid] for uuid in uuids if uuid in lost), None)
            if index is not None and yielding.ask(_wish(job_id, index), now):
                asked.append(job_id)
        return asked


def _wish(job_id: int, index: int) -> Yield:
    text = f"GPU {index} is lost; the job is run again on another."
    return Yield(job_id=job_id, code=CODE, text=text, counts=False)
