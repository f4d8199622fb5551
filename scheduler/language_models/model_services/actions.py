"""Create, change and remove model services; each change is audited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from msgspec.structs import replace

from monitor.facts.readings import Snapshot
from monitor.gpus.rows import snapshot as snapshots
from monitor.journal.rows import audit
from monitor.models import Gpu, Host
from monitor.runtime.rows.wakeups import wake
from scheduler.facts import model_fields as policy
from scheduler.facts.jobs import Requirement
from scheduler.facts.language_models import InstanceState, ModelNames
from scheduler.facts.model_fields import MODEL_FIELDS
from scheduler.jobs.lifecycle.rows import changes as job_queue
from scheduler.language_models.model_services import rows, steps
from scheduler.language_models.model_services.policy import Change
from scheduler.language_models.prompts import rows as prompts
from scheduler.models import ModelInstance, ModelService
from scheduler.queue.planner import admission
from scheduler.runner import accounts

ACCOUNT_SENTENCE = "Only administrators may choose the account of a model service."
TAKEN = "There is a model service {name} already."
MEANS = "{name} already means the model service {other}."
NAME_STAYS = "The name can't be changed, as clients and prompts use it. Add another service."
# They say what a host must have for an instance.
REQUESTED = ("gpus", "memory_mib", "on_gpus")
# Columns of the refusals of jobs.
COLUMN_OF = {"gpu_memory": "memory_mib"}


class InvalidService(ValueError):
    """A service cannot be stored; `errors`: what is wrong, by field."""

    def __init__(self, errors: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{field}: {text}" for field, text in errors))
        self.errors = errors


def create(values: Mapping[str, Any], by: User, now: datetime) -> ModelService:
    """Store a new service. Raises InvalidService."""
    return _save(ModelService(created_by=by.get_username()), values, by, now)


def change(row: ModelService, values: Mapping[str, Any], by: User, now: datetime) -> ModelService:
    """Change columns of a service; running instances keep their command. Raises InvalidService."""
    return _save(row, values, by, now)


@transaction.atomic
def remove(row: ModelService, by: User, now: datetime) -> None:
    """Delete a service; its open prompts fail, and the jobs of its instances are cancelled."""
    subject, before = _subject(row), values_of(row)
    for instance in ModelInstance.open().filter(service=row):
        if instance.job_id is not None:
            job_queue.request_cancel(instance.job_id, by.get_username(), now)
    prompts.fail_open(row.name, f"{by.get_username()} removed the model {row.name}.", now)
    row.delete()
    audit.note(
        "MODEL_REMOVED",
        f"{by.get_username()} removed the model service {before['name']}",
        by=by.get_username(), now=now, subject=subject, before=before,
    )  # fmt: skip
    wake("scheduler")


class Conflict(Exception):
    """The service's state does not allow it; the text says what to do."""


def request_boot(row: ModelService, by: User, now: datetime) -> None:
    """Have an instance started now, also after failures, unless one serves. Raises Conflict."""
    if not row.enabled:
        raise Conflict(f"The service {row.name} is disabled: enable it first.")
    with transaction.atomic():
        ModelService.objects.filter(pk=row.pk).update(retry_at=None, problem="")
        rows.request_instance(row.pk, now)
        text = f"{by.get_username()} asked for an instance of {row.name}"
        audit.note("MODEL_BOOT", text, by=by.get_username(), now=now, subject=_subject(row))


def request_unload(row: ModelService, by: User, now: datetime) -> int:
    """Unload all instances; returns their number. Raises Conflict."""
    if row.enabled and row.min_instances:
        raise Conflict(
            f"{row.min_instances} instances of {row.name} stay loaded (min_instances):"
            " set it to 0, or disable the service."
        )
    name = by.get_username()
    with transaction.atomic():
        ModelService.objects.filter(pk=row.pk).update(wanted_at=None)
        opened = list(ModelInstance.open().filter(service=row).select_related("job"))
        for instance in opened:
            steps.unload(row, instance, f"{name} unloaded it.", now)
        text = f"{name} unloaded the instances of {row.name}"
        audit.note("MODEL_UNLOAD", text, by=name, now=now, subject=_subject(row))
        wake("scheduler")
    return len(opened)


@transaction.atomic
def replace_failing(instance_id: int, reason: str, now: datetime) -> bool:
    """Drain an instance whose server fails with its requests; another one boots after a pause.

    The pause grows while instances of the service end without an answer. False: it is not ready.
    """
    ready = ModelInstance.objects.filter(pk=instance_id, state=InstanceState.READY.value)
    row = ready.select_related("service", "job").first()
    if row is None:
        return False
    before = 0 if row.tasks_completed else rows.instances_without_answers(row.service)
    ModelService.objects.filter(pk=row.service_id).update(failures=before)
    # It is stopped: its server would fail again after a sleep.
    ModelInstance.objects.filter(pk=row.pk).update(sleep_level=0)
    change = Change(state=InstanceState.DRAINING, reason=reason, is_failure=True)
    steps.apply(row.service, row, change, now)
    wake("scheduler")
    wake("models")
    return True


def values_of(row: ModelService) -> dict[str, Any]:
    """The columns that an operator sets."""
    return {field.column: getattr(row, field.column) for field in MODEL_FIELDS}


def _save(row: ModelService, values: Mapping[str, Any], by: User, now: datetime) -> ModelService:
    before = values_of(row) if row.pk else None
    if wrong := problems(row, values, by):
        raise InvalidService(wrong)
    for name, value in values.items():
        setattr(row, name, value)
    try:
        with transaction.atomic():
            row.save()
            note(row, by.get_username(), now, before)
            wake("scheduler")
    except IntegrityError:
        raise InvalidService([("name", TAKEN.format(name=row.name))]) from None
    return row


def problems(row: ModelService, values: Mapping[str, Any], by: User) -> list[tuple[str, str]]:
    """Why this user may not set these columns of the stored or new service, by field."""
    after = values_of(row) | dict(values)
    taken = ModelService.objects.filter(name=after["name"]).exclude(pk=row.pk).exists()
    return [
        *_refused(row, values, by),
        *policy.problems(after),
        *([("name", NAME_STAYS)] if row.pk and after["name"] != row.name else []),
        *_name_problems(row, after),
        *(_gpu_problems(after["gpus"], after["on_gpus"]) or _never_fits(row, after)),
        *_account_problems(row, values),
        *([("name", TAKEN.format(name=after["name"]))] if taken else []),
    ]


def _name_problems(row: ModelService, after: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names that mean another service already."""
    others = ModelService.objects.exclude(pk=row.pk).values_list("name", "aliases")
    known = ModelNames(dict(others))
    checked = [("aliases", alias) for alias in after["aliases"] if alias not in row.aliases]
    if not row.pk:
        checked.append(("name", after["name"]))
    return [
        (field, MEANS.format(name=text, other=other))
        for field, text in checked
        if (other := known.find(text)) is not None and other != text
    ]


def note(row: ModelService, by: str, now: datetime, before: dict[str, Any] | None) -> None:
    """Audit a change; nothing when nothing changed."""
    after = values_of(row)
    if before == after:
        return
    action, word = ("MODEL_CHANGED", "changed") if before else ("MODEL_ADDED", "added")
    text = f"{by} {word} the model service {row.name}"
    audit.note(action, text, by=by, now=now, subject=_subject(row), before=before, after=after)


def _refused(row: ModelService, values: Mapping[str, Any], by: User) -> list[tuple[str, str]]:
    """Only a superuser chooses the account, or the command of a service with a chosen account."""
    if by.is_superuser:
        return []
    if "account" in values and values["account"] != row.account:
        return [("account", ACCOUNT_SENTENCE)]
    if row.account and "argv" in values and list(values["argv"]) != list(row.argv):
        text = f"It runs as {row.account}: only administrators may change its command."
        return [("command", text)]
    return []


def _account_problems(row: ModelService, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """An account that does not exist; with several hosts, another one may have it."""
    chosen = values.get("account")
    if not chosen or chosen == row.account or Host.objects.count() > 1:
        return []
    try:
        accounts.account_of_service(chosen, run_as=settings.CONFIG.run_as)
    except accounts.MissingAccount as error:
        return [("account", str(error))]
    return []


def _gpu_problems(gpus: int, on_gpus: Sequence[str]) -> list[tuple[str, str]]:
    known = set(Gpu.objects.filter(uuid__in=on_gpus).values_list("uuid", flat=True))
    unknown = [uuid for uuid in on_gpus if uuid not in known]
    if unknown:
        return [("on_gpus", f"There is no GPU {unknown[0]}.")]
    if on_gpus and gpus == 0:
        return [("on_gpus", "An instance without a GPU (gpus 0) cannot be kept on GPUs.")]
    if on_gpus and gpus > len(on_gpus):
        return [("on_gpus", f"Name at least {gpus} GPUs, or lower the GPUs of each instance.")]
    return []


def _never_fits(row: ModelService, after: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Why no host could ever run an instance; the rules are those of jobs.

    Empty while no host has sent a reading. A stored request may stay as it is, so that a service
    can still be changed after its GPU was removed.
    """
    if not after["gpus"] or (
        row.pk and all(after[name] == getattr(row, name) for name in REQUESTED)
    ):
        return []
    size = after["memory_mib"]
    request = Requirement(
        gpus=after["gpus"], memory_bytes=None if size is None else size * rows.MIB
    )
    hosts = _hosts_with(after["on_gpus"])
    refusals = admission.refuse(request, hosts, settings.CONFIG.gpu_power)
    return [(COLUMN_OF.get(refusal.field, refusal.field), refusal.text) for refusal in refusals]


def _hosts_with(on_gpus: Sequence[str]) -> list[Snapshot]:
    """The newest readings of all hosts, each with only these GPUs; none if one was not read."""
    hosts = snapshots.newest_all()
    if not on_gpus:
        return hosts
    named = [
        replace(host, gpus=tuple(gpu for gpu in host.gpus if gpu.uuid in on_gpus)) for host in hosts
    ]
    is_read = sum(len(host.gpus) for host in named) == len(on_gpus)
    return [host for host in named if host.gpus] if is_read else []


def _subject(row: ModelService) -> str:
    return f"model {row.name}"
