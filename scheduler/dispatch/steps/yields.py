"""Yield requests to running jobs, and the steps that make and withdraw them.

The steps request a yield for the GPU's owner, on throttled GPUs and on lost GPUs; none touches a
process. The executor and the runner deliver a request to the job; the retry policy decides what
follows.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet

from monitor.facts.formats import duration
from monitor.facts.gpus import Condition
from monitor.facts.readings import GpuReading, Health, Snapshot
from monitor.gpus.policy.health import HealthPolicy
from monitor.gpus.policy.presence import PresencePolicy
from monitor.gpus.rows import snapshot as snapshots
from monitor.runtime.policy import Guard
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.wakeups import wake
from monitor.thresholds import rows as thresholds
from scheduler.facts.jobs import JobState
from scheduler.facts.plans import Yield
from scheduler.jobs.rows import durations
from scheduler.jobs.rows.transitions import add_attempt_event
from scheduler.models import Attempt, GpuHold, Job, YieldRequest
from scheduler.queue.planner import preemption
from scheduler.queue.planner.preemption import KEEP_FREED, PreemptionPolicy, deadline_of

# Snapshots come once a second.
LOOK_AGAIN = timedelta(seconds=0.9)
PLACED = (JobState.STARTING.value, JobState.RUNNING.value)
# A request that is repeated so soon after its withdrawal is the same: the grace period goes on.
# Else short jobs, each of which finds another GPU, would keep a job on its GPU for ever.
REPEATED_WITHIN = timedelta(seconds=10)


def ask(request: Yield, now: datetime) -> bool:
    """Ask once; False when the job has left, is being stopped, or is to leave as soon already.

    A request with an earlier deadline replaces the previous one.
    """
    with transaction.atomic():
        attempts = Attempt.objects.select_related("job__owner").select_for_update(of=("self",))
        attempt = attempts.filter(
            job_id=request.job_id, ended_at=None, job__state__in=PLACED
        ).first()
        if attempt is None or not _request(attempt, request, now):
            return False
        text = (
            f"Job {attempt.job_id} ({attempt.job.name}) is asked to leave its GPU: {request.text}"
        )
        add_attempt_event("JOB_YIELDING", attempt, text, now, "warning")
        wake("scheduler")
        wake("live")
    return True


def requeue(job: Job, by: str, now: datetime) -> bool:
    """Ask a running job to stop and put it back into the queue; False when it does not run.

    Later interruptions requeue it too.
    """
    with transaction.atomic():
        # Else a job that does not save its work would end.
        Job.objects.filter(pk=job.pk, state__in=PLACED).update(requeue=True)
        text = f"{by} puts it back into the queue."
        return ask(Yield(job_id=job.pk, code="Requeued", text=text, counts=False), now)


def preempting_elsewhere(jobs: Collection[int | None], host: str, now: datetime) -> set[int]:
    """Those of these jobs for which a job of another host is asked to leave."""
    rows = YieldRequest.objects.filter(
        for_job__in=jobs, withdrawn_at=None, attempt__ended_at=None
    ).exclude(attempt__host=host)
    held = GpuHold.objects.filter(job__in=jobs, until__gt=now).exclude(host=host)
    beneficiaries = rows.values_list("for_job", flat=True)
    holders = held.values_list("job", flat=True)
    return {*beneficiaries, *holders} - {None}


def withdrawable(host: str, now: datetime) -> list[YieldRequest]:
    """Requests whose beneficiary no longer waits, made to jobs that got no SIGTERM yet."""
    rows = YieldRequest.objects.filter(
        attempt__host=host,
        attempt__ended_at=None,
        attempt__job__state__in=PLACED,
        kind=YieldRequest.Kind.PREEMPTION,
        withdrawn_at=None,
    ).exclude(for_job__state=JobState.QUEUED.value, for_job__held="")
    requests = rows.select_related("attempt__job__owner")
    return [request for request in requests if now < _stops_at(request)]


def withdraw(request: YieldRequest, now: datetime) -> None:
    """Withdraw the request; the executor informs the job's runner."""
    rows = YieldRequest.objects.filter(pk=request.pk, withdrawn_at=None, deadline=request.deadline)
    if not rows.update(withdrawn_at=now):
        return
    GpuHold.objects.filter(job=request.for_job).delete()
    attempt = request.attempt
    beneficiary = "No job" if request.for_job_id is None else f"Job {request.for_job_id} no longer"
    text = f"Job {attempt.job_id} ({attempt.job.name}) may stay: {beneficiary} needs its GPU."
    add_attempt_event("JOB_MAY_STAY", attempt, text, now)
    wake("scheduler")
    wake("live")


def _stops_at(request: YieldRequest) -> datetime:
    """When the runner sends SIGTERM. After that the request cannot be withdrawn."""
    grace = timedelta(seconds=settings.CONFIG.cancel_grace_s)
    return request.deadline - min(grace, (request.deadline - request.asked_at) / 2)


def _request(attempt: Attempt, request: Yield, now: datetime) -> bool:
    policy = thresholds.current(PreemptionPolicy)
    job = attempt.job
    deadline = deadline_of(
        request,
        grace=timedelta(
            seconds=settings.CONFIG.cancel_grace_s if job.grace_s is None else job.grace_s
        ),
        requeue=job.requeue,
        ran_for=now - (attempt.started_at or now),
        policy=policy,
        now=now,
    )
    columns = {
        "kind": YieldRequest.Kind.PREEMPTION if request.for_job else YieldRequest.Kind.EVICTION,
        "code": request.code,
        "text": request.text,
        "for_job_id": request.for_job,
        "counts": request.counts,
        "deadline": deadline,
    }
    row, is_new = YieldRequest.objects.get_or_create(
        attempt=attempt, defaults={"asked_at": now, **columns}
    )
    if not is_new:
        if row.withdrawn_at is None and row.deadline <= deadline:
            return False
        asked_at = now
        if request.deadline is None and _is_repeated(row, now):
            asked_at, deadline = row.asked_at, min(deadline, _earliest_end(row, now))
            columns["deadline"] = deadline
        rows = YieldRequest.objects.filter(pk=row.pk)
        rows.update(asked_at=asked_at, withdrawn_at=None, **columns)
    _keep(attempt.host, request, deadline + KEEP_FREED)
    return True


def _is_repeated(row: YieldRequest, now: datetime) -> bool:
    return row.withdrawn_at is not None and now - row.withdrawn_at < REPEATED_WITHIN


def _earliest_end(row: YieldRequest, now: datetime) -> datetime:
    """The deadline of a request that is repeated: the old one, but SIGTERM comes before SIGKILL."""
    return max(row.deadline, now + timedelta(seconds=settings.CONFIG.cancel_grace_s))


def _keep(host: str, request: Yield, until: datetime) -> None:
    if request.for_job is None:
        return
    for uuid in request.gpu_uuids:
        GpuHold.objects.update_or_create(
            host=host, gpu_uuid=uuid, defaults={"job_id": request.for_job, "until": until}
        )


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
        if not snapshots.owned(self._host):
            return []
        requests = self._requests(now)
        if not requests:
            return []
        with self._guard():
            results = self._isolation.each(
                requests,
                lambda request: f"job {request.job_id}",
                lambda request: ask(request, now),
                now,
            )
        return [request for request, is_new in results if is_new]

    def _requests(self, now: datetime) -> tuple[Yield, ...]:
        snapshot = snapshots.newest(self._host)
        convert = self._isolation.converter(now)
        running = durations.running(self._host, lambda _owner, _name: None, convert)
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
        idle = withdrawable(self._host, now)
        if not idle:
            return []
        with self._guard():
            withdrawn = self._isolation.each(
                idle,
                lambda request: f"job {request.attempt.job_id}",
                lambda request: withdraw(request, now),
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

        def ask_job(row: tuple[int, list[str]]) -> bool:
            gpu = next((hot[uuid] for uuid in row[1] if uuid in hot), None)
            return gpu is not None and ask(_hot_gpu_yield(row[0], gpu, now), now)

        rows = self._preemptible().values_list("job_id", "gpu_uuids") if hot else ()
        results = self._isolation.each(rows, lambda row: f"job {row[0]}", ask_job, now)
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

        def ask_job(row: tuple[int, list[str]]) -> bool:
            index = next((lost[uuid] for uuid in row[1] if uuid in lost), None)
            return index is not None and ask(_lost_gpu_yield(row[0], index), now)

        rows = attempts.values_list("job_id", "gpu_uuids")
        results = self._isolation.each(rows, lambda row: f"job {row[0]}", ask_job, now)
        return [job_id for (job_id, _), is_new in results if is_new]


def _lost_gpu_yield(job_id: int, index: int) -> Yield:
    text = f"GPU {index} is lost; the job is run again on another."
    return Yield(job_id=job_id, code=LOST_CODE, text=text, counts=False)
