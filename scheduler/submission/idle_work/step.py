"""The controller's part that gives idle GPUs background work from templates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from monitor.facts.gpu_states import GpuState
from monitor.facts.readings import Snapshot
from monitor.gpus.snapshot import rows as snapshots
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from scheduler.execution.steps import gpu_closures
from scheduler.facts.blockers import Tier
from scheduler.facts.idle_work import TemplateFact
from scheduler.facts.jobs import JobState
from scheduler.models import IdleTemplate, Job
from scheduler.queue.planner.idle_gpus import IdlePolicy, idle_by_use
from scheduler.submission.idle_work import actions, rows
from scheduler.submission.idle_work.policy import IdleWorkPolicy, may_run, pick_weighted_config
from scheduler.submission.intake.policy import UnableToSubmit

# A job that waits for longer came too late: its GPU is in use.
WAITS_AT_MOST = timedelta(seconds=60)


class IdleWork:
    """A Part. One query if there are no templates."""

    name = "idle work"

    def __init__(self, host: str) -> None:
        self._host = host
        self._isolation = ItemIsolation(host, self.name)

    def judge(self, snapshot: Snapshot | None, now: datetime) -> list[str]:
        """Returns the names of the templates that start a job."""
        templates = rows.enabled()
        if snapshot is None or not templates:
            return []
        rows.cancel_waiting(now - WAITS_AT_MOST, now)
        policy = thresholds.current(IdleWorkPolicy)
        if not policy.enabled:
            return []
        room = policy.most_jobs - rows.open_jobs().count()
        places = self._unwanted(self._places(snapshot, now))[: max(0, room)]
        started = self._isolation.each(
            places,
            lambda place: f"idle work for {place[0] or 'the CPUs'}",
            lambda place: self._start(templates, place, now),
            now,
        )
        return [name for _, name in started if name]

    def _unwanted(self, places: list[tuple[str, float]]) -> list[tuple[str, float]]:
        """Those that no waiting job of a user could take."""
        return [place for place in places if not _others_wait(self._host, place[0])]

    def _places(self, snapshot: Snapshot, now: datetime) -> list[tuple[str, float]]:
        """The idle GPUs and their idle seconds, the longest first; "" = the idle CPUs."""
        policy = thresholds.current(IdlePolicy)
        taken = {claim.gpu_uuid for claim in snapshots.open_claims(self._host)}
        taken |= gpu_closures.gpus_of_batches(self._host).keys()
        taken |= set(rows.open_jobs().values_list("gpu_uuid", flat=True))
        places = [
            (gpu.uuid, (now - since).total_seconds())
            for gpu, since in idle_by_use(snapshot.gpus, policy, now)
            if gpu.state is GpuState.IDLE and not gpu.closed and gpu.uuid not in taken
        ]
        places.sort(key=lambda place: -place[1])
        cpu_s = snapshot.host.cpu_idle_s(now)
        if cpu_s is not None and cpu_s >= policy.idle_seconds:
            places.append(("", cpu_s))
        return places

    def _start(
        self,
        templates: Sequence[IdleTemplate],
        place: tuple[str, float],
        now: datetime,
    ) -> str:
        gpu_uuid, idle_s = place
        by_name = {row.name: row for row in templates}
        able = [fact for fact in rows.facts(templates, now) if may_run(fact, gpu_uuid)]
        while able:
            choice = pick_weighted_config(able, now, rows.next_seed())
            if choice is None:
                return ""
            row = by_name[choice.template.name]
            try:
                new = actions.job_of(row, gpu_uuid, now)
            except UnableToSubmit as error:
                rows.note_problem(row, str(error))
                able = _without(able, row.name)
                continue
            rows.start(choice, row, new, self._host, gpu_uuid, idle_s, now)
            return row.name
        return ""


def _without(templates: Sequence[TemplateFact], name: str) -> list[TemplateFact]:
    return [template for template in templates if template.name != name]


def _others_wait(host: str, gpu_uuid: str) -> bool:
    """Whether a job of a user waits that this idle GPU, or else the idle CPUs, could serve."""
    # Items of a batch in exclusive mode use the GPUs of that batch only.
    waiting = Job.objects.filter(
        state=JobState.QUEUED.value, held="", idle_template="", model_service=None,
        exclusive_batch=None, host__in=("", host),
    )  # fmt: skip
    if gpu_uuid:
        waiting = waiting.filter(gpus__gt=0, gpu_uuid__in=("", gpu_uuid))
    else:
        waiting = waiting.filter(gpus=0)
    own_tiers = (int(Tier.PERSON), int(Tier.NOT_YET), int(Tier.MY_LIMITS))
    for blockers in waiting.order_by("id").values_list("blockers", flat=True)[:200]:
        if not blockers:
            return True
        tiers = [blocker.get("tier") for blocker in blockers if isinstance(blocker, dict)]
        if not any(tier in own_tiers for tier in tiers):
            return True
    return False
