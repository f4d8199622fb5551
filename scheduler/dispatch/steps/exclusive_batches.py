"""Step: batches in exclusive mode take GPUs, have models unloaded, and load them again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db.models import Q

from monitor.runtime.policy import Guard, TimedCache
from monitor.runtime.rows.extensions import part, parts
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from scheduler.dispatch.inputs import PlanInputs
from scheduler.dispatch.steps import yields as yield_requests
from scheduler.execution.steps import gpu_closures
from scheduler.facts.blockers import BlockerCode
from scheduler.facts.jobs import Requirement
from scheduler.facts.language_models import InstanceState, Role
from scheduler.facts.plans import PlanPolicy, Slot, Yield
from scheduler.facts.scripts import Approval, ExclusiveFact, ExclusiveStep
from scheduler.fair_share.rows import Rights
from scheduler.limits.quotas import rows as quota_rows
from scheduler.limits.time_windows import policy as window_rules
from scheduler.limits.time_windows.policy import WindowRequest
from scheduler.models import Attempt, ExclusiveRun, Job, ModelInstance, ModelService
from scheduler.submission.batches import policy
from scheduler.submission.batches import rows as exclusive
from scheduler.submission.batches.policy import BatchPolicy

EFFECTS = "scheduler.language_models.model_services.steps"
KIND = "JOB_STEP_FAILED"
NO_GPU = "a GPU that is idle, or that only models use"
NO_SHARE = "a larger share of the GPUs: that of its owner is too small for an item"
# Shares change with the jobs of all users.
RIGHTS_FOR = timedelta(seconds=10)
# A boot waits for its place, and then takes up to the time limit of its service.
PLACED_WITHIN = timedelta(seconds=60)
# In these steps, idle work that is still on the GPUs of the batch is asked to leave.
TAKING = (
    ExclusiveStep.ANNOUNCED,
    ExclusiveStep.DRAINING,
    ExclusiveStep.UNLOADING,
    ExclusiveStep.WORKING,
)


class ExclusiveBatches:
    """`step(now)` moves each run of this host by at most one step; one query if there is none."""

    def __init__(self, guard: Guard, host: str, policy: PlanPolicy) -> None:
        self._guard = guard
        self._host = host
        self._isolation = ItemIsolation(host, "exclusive batches", guard)
        self._inputs = PlanInputs(host, policy, self._isolation)
        self._rights: TimedCache[Rights] = TimedCache(Rights, RIGHTS_FOR)

    def step(self, now: datetime) -> list[int]:
        """Returns the batches whose step changed."""
        runs = exclusive.open_runs(self._host)
        if not runs:
            return []
        rules = thresholds.current(BatchPolicy)
        with self._guard():
            moved = self._isolation.each(
                runs,
                lambda run: f"exclusive mode of batch {run.pk}",
                lambda run: self._advance(run, rules, now),
                now,
                KIND,
            )
        return [run.pk for run, is_moved in moved if is_moved]

    def _advance(self, listed: ExclusiveRun, rules: BatchPolicy, now: datetime) -> bool:
        run = exclusive.locked_run(listed, self._host)
        if run is None:
            return False
        step = ExclusiveStep(run.step)
        may_take = step is ExclusiveStep.WAITING and run.approval != Approval.ASKED.value
        able = self._takeable(run, now) if may_take else []
        instances = self._instances(run)
        fact = ExclusiveFact(
            step=step,
            since=run.since,
            is_over=exclusive.is_over(run),
            is_stopped=bool(run.stopped_by),
            is_next=step is not ExclusiveStep.WAITING or exclusive.active(self._host) is None,
            gpus=len(able or run.gpu_uuids),
            in_flight=sum(row.in_flight for row in instances),
            loaded=len(instances),
            reloads=len(run.reloads),
            boots=_boots(run, now),
        )
        following = policy.next_step(fact, now)
        if following is not None:
            self._enter(run, following, able, instances, rules, now)
            return True
        self._stay(run, fact, instances, now)
        return False

    def _enter(
        self,
        run: ExclusiveRun,
        step: ExclusiveStep,
        able: list[str],
        instances: Sequence[ModelInstance],
        rules: BatchPolicy,
        now: datetime,
    ) -> None:
        """The changes at the begin of a step, in the transaction that records it."""
        columns: dict[str, object] = {}
        if step is ExclusiveStep.ANNOUNCED:
            columns = {"host": self._host, "gpu_uuids": able}
            _ask_idle_work(run, self._host, able, now)
        elif step is ExclusiveStep.DRAINING:
            columns = {"reloads": exclusive.close_models(run, instances)}
        elif step is ExclusiveStep.UNLOADING:
            _unload(run, instances, now)
        elif step is ExclusiveStep.RELOADING:
            reloads = run.reloads if rules.reload_llms_after_batch else []
            columns = {"reloads": reloads, "gpu_uuids": _gpus_of(run, reloads)}
        elif step is ExclusiveStep.ENDED:
            exclusive.open_models(run)
            columns = {"gpu_uuids": [], "boot": None}
        exclusive.move(run, step, now, **columns)

    def _stay(
        self,
        run: ExclusiveRun,
        fact: ExclusiveFact,
        instances: Sequence[ModelInstance],
        now: datetime,
    ) -> None:
        """The repeated part of a step; it does nothing that has been done."""
        if fact.step in TAKING:
            _ask_idle_work(run, self._host, run.gpu_uuids, now)
        if fact.step is ExclusiveStep.WAITING:
            self._note_wait(run, now)
        elif fact.step is ExclusiveStep.UNLOADING:
            _unload(run, instances, now)
        elif fact.step is ExclusiveStep.WORKING:
            self._leave_windows(run, now)
            self._leave_above_share(run, now)
        elif fact.step is ExclusiveStep.RELOADING and not fact.boots:
            _load_next(run, now)

    def _note_wait(self, run: ExclusiveRun, now: datetime) -> None:
        other = exclusive.active(self._host)
        if run.approval == Approval.ASKED.value:
            # It shares GPUs meanwhile, also while another batch has some for itself.
            exclusive.note_wait(run, exclusive.WAITS_FOR_APPROVAL, None)
        elif other is not None:
            exclusive.note_wait(run, f"batch {other}", other)
        else:
            exclusive.note_wait(run, NO_SHARE if self._most_gpus(run, now) == 0 else NO_GPU, None)

    def _most_gpus(self, run: ExclusiveRun, now: datetime) -> int:
        """By the owner's quota and fair share, and the number of items."""
        owner, each = run.batch.owner, _gpus_of_item(run)
        limits = [max(1, run.batch.total_items * each)]
        quota = quota_rows.of_person(owner).gpus
        if quota is not None:
            limits.append(quota)
        if run.approval == Approval.SHARE.value:
            by_share = exclusive.gpus_by_share(owner.username, self._rights(now))
            limits.append(by_share if by_share >= each else 0)
        return min(limits)

    def _leave_above_share(self, run: ExclusiveRun, now: datetime) -> None:
        """Give up GPUs above the share of the owner, which others have reduced meanwhile.

        The GPUs of one item stay, so that the batch goes on.
        """
        most = max(_gpus_of_item(run), self._most_gpus(run, now))
        if run.approval == Approval.SHARE.value and len(run.gpu_uuids) > most:
            run.gpu_uuids = run.gpu_uuids[:most]
            run.save(update_fields=["gpu_uuids"])

    def _instances(self, run: ExclusiveRun) -> list[ModelInstance]:
        """Instances on the batch's GPUs that have not ended."""
        if not run.gpu_uuids:
            return []
        mine = set(run.gpu_uuids)
        rows = ModelInstance.open().filter(host=run.host)
        return [row for row in rows.select_related("service", "job") if mine & set(row.gpu_uuids)]

    def _takeable(self, run: ExclusiveRun, now: datetime) -> list[str]:
        """GPUs that are idle, or have only models that may leave, idle work and own items.

        At most as many as the owner's quota and share allow, and as the items need: first GPUs
        without jobs, last those with models.
        """
        gpus = self._inputs.gpu_slots(now).gpus
        models = _jobs_that_leave(self._host)
        free = models | exclusive.own_jobs(run.pk) | exclusive.idle_jobs()
        closed = self._windows(run, gpus, now) | gpu_closures.gpus_of_models().keys()
        able = [
            gpu
            for gpu in gpus
            if (not run.chosen or gpu.gpu_uuid in run.chosen)
            and _is_takeable(gpu, free)
            and gpu.gpu_uuid not in closed
        ]
        able.sort(key=lambda gpu: (bool(models.intersection(gpu.jobs)), bool(gpu.jobs), gpu.index))
        return [gpu.gpu_uuid for gpu in able[: self._most_gpus(run, now)]] if able else []

    def _windows(self, run: ExclusiveRun, gpus: Sequence[Slot], now: datetime) -> set[str]:
        """GPUs that time windows close to the batch now."""
        request = WindowRequest(
            owner=run.batch.owner.username,
            requirement=Requirement(gpus=1, exclusive=True),
            ends=now,
            known=True,
        )
        return set(window_rules.closed_for(request, self._inputs.windows(now), gpus, (), now))

    def _leave_windows(self, run: ExclusiveRun, now: datetime) -> None:
        """Give up GPUs that a time window reserves for other users by now."""
        if not self._inputs.windows(now):
            return
        closed = self._windows(run, self._inputs.gpu_slots(now).gpus, now)
        if closed.intersection(run.gpu_uuids):
            run.gpu_uuids = [uuid for uuid in run.gpu_uuids if uuid not in closed]
            run.save(update_fields=["gpu_uuids"])


def _ask_idle_work(run: ExclusiveRun, host: str, gpus: Sequence[str], now: datetime) -> None:
    """Ask idle work on these GPUs to leave within its grace, once each."""
    running = Attempt.objects.filter(host=host, ended_at=None).exclude(job__idle_template="")
    unasked = running.filter(Q(yield_request=None) | Q(yield_request__withdrawn_at__isnull=False))
    for job, uuids in unasked.order_by("job").values_list("job_id", "gpu_uuids"):
        if set(uuids).intersection(gpus):
            text = f"The exclusive mode of {run.batch} needs its GPU."
            code = BlockerCode.BATCH_EXCLUSIVE
            request = Yield(job_id=job, code=code, text=text, counts=False, spares_young=True)
            yield_requests.ask(request, now)


def _is_takeable(gpu: Slot, free: set[int]) -> bool:
    is_open = gpu.healthy and not gpu.closed and gpu.reserved_for is None and gpu.batch is None
    return is_open and not gpu.foreign and free.issuperset(gpu.jobs)


def _gpus_of_item(run: ExclusiveRun) -> int:
    return int(run.batch.request.get("gpus") or 1)


def _jobs_that_leave(host: str) -> set[int]:
    """The jobs of instances that may be unloaded: brain models and pinned ones stay."""
    rows = ModelInstance.open().filter(host=host, service__pin=False)
    brains = [role.value for role in Role if role.is_brain]
    leaving = rows.exclude(service__role__in=brains).exclude(job=None)
    return {row.job_id for row in leaving if row.job_id is not None}


def _unload(run: ExclusiveRun, instances: Sequence[ModelInstance], now: datetime) -> None:
    for unload in parts(f"{EFFECTS}:unload"):
        for row in instances:
            unload(row.service, row, f"{run.batch} has its GPU for itself.", now)


def _gpus_of(run: ExclusiveRun, reloads: Sequence[dict[str, object]]) -> list[str]:
    """Of the batch's GPUs, those that models return to."""
    wanted: set[object] = set()
    for entry in reloads:
        gpus = entry["gpus"]
        wanted.update(gpus if isinstance(gpus, list) else ())
    return [uuid for uuid in run.gpu_uuids if uuid in wanted]


def _boots(run: ExclusiveRun, now: datetime) -> bool:
    """Whether a model is being loaded; one that takes too long does not delay the next."""
    if run.boot is None:
        return False
    row = ModelInstance.objects.select_related("service").filter(pk=run.boot).first()
    if row is None or row.state != InstanceState.BOOTING.value:
        return False
    return now - row.since < timedelta(seconds=row.service.boot_timeout_s) + PLACED_WITHIN


def _load_next(run: ExclusiveRun, now: datetime) -> None:
    """Start the next model on GPUs that are kept for it."""
    entry, *rest = run.reloads
    run.gpu_uuids = _gpus_of(run, run.reloads)
    run.reloads, run.boot = rest, None
    service = ModelService.objects.filter(pk=entry["service"], enabled=True).first()
    boot = part(f"{EFFECTS}:boot")
    row = boot(service, now) if service is not None and boot is not None else None
    if row is not None and row.job_id is not None:
        run.boot = row.pk
        Job.objects.filter(pk=row.job_id).update(exclusive_batch=run.pk)
    run.save(update_fields=["gpu_uuids", "reloads", "boot"])
