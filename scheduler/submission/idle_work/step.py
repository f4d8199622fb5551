"""The controller's part that gives idle GPUs background work from templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError

from monitor.facts.gpus import GpuState
from monitor.facts.readings import Snapshot
from monitor.gpus.rows import snapshot as snapshots
from monitor.journal.rows import audit
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from scheduler.execution.steps import gpu_closures
from scheduler.facts.batches import TemplateFact
from scheduler.facts.blockers import Tier
from scheduler.facts.jobs import JobState, NewJob, Refusal
from scheduler.models import IdleTemplate, Job
from scheduler.queue.planner.idle_gpus import IdlePolicy, idle_by_use
from scheduler.submission.idle_work import rows
from scheduler.submission.idle_work.policy import IdleWorkPolicy, may_run, pick_weighted_config
from scheduler.submission.intake import actions as intake
from scheduler.submission.intake.policy import UnableToSubmit
from scheduler.submission.intake.steps import checked

# Check the templates of idle work, and make their jobs.


# Fields of a job that a template sets itself, or that make no sense for it.
NOT_FOR_TEMPLATES = frozenset(
    {
        "priority", "preemptible", "array", "array_limit", "begin", "after", "after_success",
        "stdin_base64", "blocking", "on_gpu", "environment", "interactive",
    }
)  # fmt: skip
LOWEST_PRIORITY = 1
OTHER_ACCOUNT = "Only administrators may charge another account than their own."


def job_of(row: IdleTemplate, gpu_uuid: str, now: datetime) -> NewJob:
    """The job of a template on this GPU. Raises UnableToSubmit."""
    new = _read(row.request, now)
    new = replace(
        new,
        name=f"idle {row.name}",
        priority=LOWEST_PRIORITY,
        requirement=replace(
            new.requirement, gpu_uuid=gpu_uuid if new.requirement.gpus == 1 else ""
        ),
        yield_options=replace(new.yield_options, preemptible=True),
    )
    (fitted,) = intake.fitted_all([new], row.account)
    if refusals := intake.refusals(fitted, row.account):
        raise UnableToSubmit(refusals)
    return fitted


def _read(request: Any, now: datetime) -> NewJob:
    if not isinstance(request, dict):
        raise UnableToSubmit([Refusal(field="request", text="Write an object with fields.")])
    wrong = [
        Refusal(field=f"request.{name}", text="A template cannot have this field.")
        for name in sorted(NOT_FOR_TEMPLATES & request.keys())
    ]
    if wrong:
        raise UnableToSubmit(wrong)
    return checked(request, now)


def create(values: Mapping[str, Any], account: User, by: User, now: datetime) -> IdleTemplate:
    """Store a new template. Raises UnableToSubmit with all mistakes."""
    row = IdleTemplate(**values, account=account, created_by=by.get_username())
    if mistakes := problems(row, by, now):
        raise UnableToSubmit(mistakes)
    row.save()
    note(row, by, now, "IDLE_TEMPLATE_ADDED", "added")
    return row


def note(row: IdleTemplate, by: User, now: datetime, action: str, word: str) -> None:
    name = by.get_username()
    text = f"{name} {word} the idle template {row.name}"
    after = {"request": row.request, "account": row.account.username, "enabled": row.enabled}
    audit.note(action, text, by=name, now=now, subject=f"idle template {row.name}", after=after)


def problems(row: IdleTemplate, by: User, now: datetime) -> list[Refusal]:
    """Why this user may not store this template."""
    refusals: list[Refusal] = []
    try:
        row.full_clean(exclude=["created_at"])
    except ValidationError as error:
        refusals += [
            Refusal(field=field, text=text)
            for field, texts in error.message_dict.items()
            for text in texts
        ]
    if row.account_id != by.pk and not by.is_superuser:
        refusals.append(Refusal(field="account", text=OTHER_ACCOUNT))
    try:
        _read(row.request, now)
    except UnableToSubmit as error:
        refusals += error.refusals
    return refusals


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
                new = job_of(row, gpu_uuid, now)
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
