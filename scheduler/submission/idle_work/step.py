"""Background work for idle GPUs: its templates and choices, and the part of the controller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Count, Exists, OuterRef, QuerySet
from django.utils import timezone

from monitor.facts.formats import fact_from
from monitor.facts.gpus import GpuState
from monitor.facts.readings import Snapshot
from monitor.gpus.rows import snapshot as snapshots
from monitor.journal.rows import audit, events
from monitor.runtime.rows.database import compiled_once
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from scheduler.execution.steps import gpu_closures
from scheduler.facts.blockers import Tier
from scheduler.facts.jobs import JobState, NewJob, Refusal
from scheduler.facts.scripts import Candidate, Choice, Signal, SignalName, TemplateFact
from scheduler.jobs.rows import changes
from scheduler.models import Attempt, IdleChoice, IdleTemplate, Job
from scheduler.submission.idle_work.policy import (
    IdlePolicy,
    IdleWorkPolicy,
    idle_by_use,
    may_run,
    pick_weighted_config,
)
from scheduler.submission.intake import actions as intake
from scheduler.submission.intake.policy import UnableToSubmit
from scheduler.submission.intake.steps import checked

BY = "gpucoord"
CHOICES_KEPT = 2000


@compiled_once
def enabled() -> QuerySet[IdleTemplate]:
    """Those of active users."""
    rows = IdleTemplate.objects.filter(enabled=True, account__is_active=True)
    return rows.select_related("account")


def facts(rows: Sequence[IdleTemplate], now: datetime) -> list[TemplateFact]:
    """The templates with the numbers that their limits apply to."""
    names = [row.name for row in rows]
    jobs = open_jobs().filter(idle_template__in=names)
    running: Counter[str] = Counter()
    on_gpu: dict[str, Counter[str]] = {name: Counter() for name in names}
    for name, uuid in jobs.values_list("idle_template", "gpu_uuid"):
        running[name] += 1
        on_gpu[name][uuid] += 1
    today = Job.objects.filter(idle_template__in=names, submitted_at__gte=_midnight(now))
    started = dict(today.order_by().values_list("idle_template").annotate(Count("id")))
    return [
        fact_from(
            TemplateFact,
            row,
            gpus=gpus_of(row.request),
            signals=signals_of(row),
            running=running[row.name],
            started_today=started.get(row.name, 0),
            on_gpu=on_gpu[row.name],
        )
        for row in rows
    ]


def gpus_of(request: Mapping[str, Any]) -> int:
    gpus = request.get("gpus", 1)
    return gpus if isinstance(gpus, int) else 1


def signals_of(row: IdleTemplate) -> dict[SignalName, Signal]:
    """The readable signals of a template."""
    posted = row.signals if isinstance(row.signals, dict) else {}
    signals = {}
    for name in SignalName:
        try:
            entry = posted[name.value]
            signals[name] = Signal(float(entry["value"]), datetime.fromisoformat(entry["at"]))
        except (KeyError, TypeError, ValueError):
            continue
    return signals


def post_signals(row: IdleTemplate, values: Mapping[str, float], now: datetime) -> None:
    """Store these values; the other signals stay."""
    with transaction.atomic():
        locked = IdleTemplate.objects.select_for_update().get(pk=row.pk)
        news = {name: {"value": value, "at": now.isoformat()} for name, value in values.items()}
        locked.signals = {**locked.signals, **news}
        locked.save(update_fields=["signals"])
    row.signals = locked.signals


def _midnight(now: datetime) -> datetime:
    local = now.astimezone(ZoneInfo(timezone.get_default_timezone_name()))
    return local.replace(hour=0, minute=0, second=0, microsecond=0)


def open_jobs() -> QuerySet[Job]:
    """Jobs of templates that have not ended."""
    return Job.objects.exclude(state=JobState.FINISHED.value).exclude(idle_template="")


def next_seed() -> int:
    """The number of the next choice, from which the choice follows."""
    newest = IdleChoice.objects.order_by("-id").values_list("id", flat=True).first()
    return (newest or 0) + 1


def start(
    choice: Choice,
    row: IdleTemplate,
    new: NewJob,
    host: str,
    gpu_uuid: str,
    idle_s: float,
    now: datetime,
) -> Job:
    """Queue the job of a choice, and store why. The caller opens the transaction."""
    job = changes.add_within(new, row.account, now, idle_template=row.name)
    newest = IdleChoice.objects.create(
        at=now,
        host=host,
        gpu_uuid=gpu_uuid,
        idle_s=idle_s,
        template=row.name,
        job=job.pk,
        seed=choice.seed,
        candidates=candidates_row(choice.candidates),
    )
    IdleChoice.objects.filter(pk__lte=newest.pk - CHOICES_KEPT).delete()
    if row.problem:
        IdleTemplate.objects.filter(pk=row.pk).update(problem="")
    text = f"Idle work {row.name} starts as job {job.pk} of {row.account.username}"
    owner = row.account.username
    events.add("IDLE_WORK_STARTED", text, now=now, host=host, gpu_uuid=gpu_uuid, owner=owner)
    return job


def candidates_row(candidates: Iterable[Candidate]) -> list[dict[str, Any]]:
    """The chances of a choice, as JSON."""
    return [
        {
            "name": candidate.name,
            "base": candidate.base,
            "factors": {name.value: round(value, 4) for name, value in candidate.factors.items()},
            "weight": round(candidate.weight, 6),
            "share": round(candidate.share, 6),
        }
        for candidate in candidates
    ]


def note_problem(row: IdleTemplate, problem: str) -> None:
    if row.problem != problem:
        IdleTemplate.objects.filter(pk=row.pk).update(problem=problem[:1000])


def cancel_waiting(before: datetime, now: datetime) -> int:
    """Cancel jobs that have found no GPU since this time: it is no longer idle.

    Those that have run before may have saved their work, so they wait for their GPU.
    """
    waiting = open_jobs().filter(state=JobState.QUEUED.value, submitted_at__lt=before)
    ran = Attempt.objects.filter(job=OuterRef("pk"), started_at__isnull=False)
    numbers = list(waiting.exclude(Exists(ran)).values_list("pk", flat=True))
    return changes.cancel(Job.objects.filter(pk__in=numbers), BY, now) if numbers else 0


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
        templates = enabled()
        if snapshot is None or not templates:
            return []
        cancel_waiting(now - WAITS_AT_MOST, now)
        policy = thresholds.current(IdleWorkPolicy)
        if not policy.enabled:
            return []
        room = policy.most_jobs - open_jobs().count()
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
        taken |= set(open_jobs().values_list("gpu_uuid", flat=True))
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
        able = [fact for fact in facts(templates, now) if may_run(fact, gpu_uuid)]
        while able:
            choice = pick_weighted_config(able, now, next_seed())
            if choice is None:
                return ""
            row = by_name[choice.template.name]
            try:
                new = job_of(row, gpu_uuid, now)
            except UnableToSubmit as error:
                note_problem(row, str(error))
                able = _without(able, row.name)
                continue
            start(choice, row, new, self._host, gpu_uuid, idle_s, now)
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
