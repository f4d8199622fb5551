"""Steps that request yields: for the GPU's owner, on throttled GPUs, on lost GPUs; and withdrawals.

No step touches a process.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.db.models import Q, QuerySet

from monitor.facts.formats import duration
from monitor.facts.health import Condition
from monitor.facts.readings import GpuReading, Health, Snapshot
from monitor.gpus.policy.health import HealthPolicy
from monitor.presence.policy.thresholds import PresencePolicy
from monitor.runtime.facts import Guard
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.snapshot import rows as monitor_store
from monitor.thresholds import rows as thresholds
from scheduler.facts.jobs import JobState
from scheduler.facts.plans import Yield
from scheduler.lifecycle.rows import queue_facts
from scheduler.models import Attempt
from scheduler.planner import preemption
from scheduler.yields import rows as yield_requests

# Snapshots come once a second.
LOOK_AGAIN = timedelta(seconds=0.9)


class EvictionStep:
    """`step(now)` asks jobs to yield to a user of their GPU; one cheap query if there is none."""

    def __init__(self, guard: Guard, host: str) -> None:
        self._guard = guard
        self._host = host
        self._isolation = ItemIsolation(host, "evictor", guard)
        self._looked_at = datetime.min.replace(tzinfo=UTC)

    def step(self, now: datetime) -> list[Yield]:
        """Returns the new requests; each job is asked once."""
        if timedelta() <= now - self._looked_at < LOOK_AGAIN:
            return []
        self._looked_at = now
        if not monitor_store.owned(self._host):
            return []
        requests = self._requests(now)
        if not requests:
            return []
        with self._guard():
            results = self._isolation.each(
                requests,
                lambda request: f"job {request.job_id}",
                lambda request: yield_requests.ask(request, now),
                now,
            )
        return [request for request, is_new in results if is_new]

    def _requests(self, now: datetime) -> tuple[Yield, ...]:
        snapshot = monitor_store.newest(self._host)
        convert = self._isolation.converter(now)
        running = queue_facts.running(self._host, lambda _owner, _name: None, convert)
        if snapshot is None or now - snapshot.at > preemption.STALE_AFTER:
            return ()
        indices = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
        policy = thresholds.current(PresencePolicy)
        return preemption.owner_evictions(snapshot.owners, running, indices, policy)


class WithdrawalStep:
    """`step(now)` withdraws yield requests whose beneficiary no longer needs the GPU."""

    def __init__(self, guard: Guard, host: str) -> None:
        self._guard = guard
        self._host = host
        self._isolation = ItemIsolation(host, "withdrawer", guard)

    def step(self, now: datetime) -> list[int]:
        """Returns the jobs that may stay."""
        idle = yield_requests.withdrawable(self._host, now)
        if not idle:
            return []
        with self._guard():
            withdrawn = self._isolation.each(
                idle,
                lambda request: f"job {request.attempt.job_id}",
                lambda request: yield_requests.withdraw(request, now),
                now,
            )
        return [request.attempt.job_id for request, _ in withdrawn]


THROTTLED_CODE = "GpuThrottled"


class HotGpus:
    """Asks preemptible jobs to leave a GPU that has been throttled for long, once each.

    A throttled GPU gets no new jobs in any case, but running jobs keep it hot. Off unless the
    policy "health" sets `hot_yield_minutes`.
    """

    name = "hot GPUs"

    def __init__(self, host: str) -> None:
        self._host = host
        self._isolation = ItemIsolation(host, self.name)

    def judge(self, snapshot: Snapshot | None, now: datetime) -> list[int]:
        """Returns the jobs that were asked."""
        throttled = [
            gpu
            for gpu in (snapshot.gpus if snapshot else ())
            if gpu.condition is Condition.THROTTLED
        ]
        if not throttled:
            return []
        minutes = thresholds.current(HealthPolicy).hot_yield_minutes
        if not minutes:
            return []
        hot = {gpu.uuid: gpu for gpu in throttled if _since(gpu, now) >= timedelta(minutes=minutes)}

        def ask(row: tuple[int, list[str]]) -> bool:
            gpu = next((hot[uuid] for uuid in row[1] if uuid in hot), None)
            return gpu is not None and yield_requests.ask(_hot_gpu_yield(row[0], gpu, now), now)

        rows = self._preemptible().values_list("job_id", "gpu_uuids") if hot else ()
        results = self._isolation.each(rows, lambda row: f"job {row[0]}", ask, now)
        return [job_id for (job_id, _), is_new in results if is_new]

    def _preemptible(self) -> QuerySet[Attempt]:
        running = Attempt.objects.filter(
            host=self._host,
            ended_at=None,
            job__preemptible=True,
            job__state=JobState.RUNNING.value,
        )
        return running.filter(Q(yield_request=None) | Q(yield_request__withdrawn_at__isnull=False))


def _since(gpu: GpuReading, now: datetime) -> timedelta:
    return timedelta() if gpu.condition_since is None else now - gpu.condition_since


def _hot_gpu_yield(job_id: int, gpu: GpuReading, now: datetime) -> Yield:
    lasts = duration(_since(gpu, now).total_seconds())
    why = f": {gpu.condition_reason}" if gpu.condition_reason else "."
    text = f"GPU {gpu.index} has been throttled for {lasts}{why}"
    return Yield(job_id=job_id, code=THROTTLED_CODE, text=text, counts=False)


LOST_CODE = "GpuLost"


class LostGpus:
    """Asks jobs with `requeue` to leave a lost GPU. Other jobs may have work without it."""

    name = "lost GPUs"

    def __init__(self, host: str) -> None:
        self._host = host
        self._isolation = ItemIsolation(host, self.name)

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

        def ask(row: tuple[int, list[str]]) -> bool:
            index = next((lost[uuid] for uuid in row[1] if uuid in lost), None)
            return index is not None and yield_requests.ask(_lost_gpu_yield(row[0], index), now)

        rows = attempts.values_list("job_id", "gpu_uuids")
        results = self._isolation.each(rows, lambda row: f"job {row[0]}", ask, now)
        return [job_id for (job_id, _), is_new in results if is_new]


def _lost_gpu_yield(job_id: int, index: int) -> Yield:
    text = f"GPU {index} is lost; the job is run again on another."
    return Yield(job_id=job_id, code=LOST_CODE, text=text, counts=False)
