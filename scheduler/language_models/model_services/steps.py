"""Writes of a pass: states of instances, their jobs, learned boot times, events."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.accounts import ASLEEP
from monitor.facts.formats import shortest_size
from monitor.facts.readings import Snapshot
from monitor.gpus.rows import snapshot as snapshots
from monitor.journal.facts import EvictionReason
from monitor.journal.rows import audit, counters, events
from monitor.models import Gpu, Host
from monitor.runtime.rows.wakeups import wake
from scheduler.facts import model_fields as policy
from scheduler.facts.jobs import BLOCKING_PRIORITY, NewJob, Requirement, YieldOptions
from scheduler.facts.language_models import ENDED, TRANSITIONS, InstanceState, ModelNames
from scheduler.facts.model_fields import MODEL_FIELDS
from scheduler.jobs.rows import changes as job_queue
from scheduler.language_models.model_services import policy as lifecycle
from scheduler.language_models.model_services import rows
from scheduler.language_models.model_services.policy import (
    DRAIN_FOR,
    Change,
    Command,
    Scale,
    backoff,
)
from scheduler.language_models.prompts import rows as prompts
from scheduler.models import Attempt, GpuHold, Job, ModelInstance, ModelService
from scheduler.queue.planner import admission
from scheduler.runner import accounts
from scheduler.runner.accounts import Account

BY = "gpucoord"
# Requests in flight may end, then the process.
HOLD_FOR = DRAIN_FOR + timedelta(seconds=30)
# When the user of its GPU returns; the process is asked at once.
LEAVES_WITHIN = timedelta(seconds=4)
# State of an instance on the cards of its GPUs.
PHASES = {
    InstanceState.BOOTING: "booting",
    InstanceState.READY: "ready",
    InstanceState.DRAINING: "busy",
    InstanceState.SLEEPING: ASLEEP,
}


class IllegalInstanceTransition(Exception):
    """A state change that the table does not allow: an error in gpucoord."""


def is_news(row: ModelInstance, attempt: Attempt | None) -> bool:
    """Whether the attempt of the instance's job has facts that the row lacks."""
    if attempt is None:
        return row.state == InstanceState.BOOTING.value and row.started_boot_at is not None
    if row.started_boot_at is None or row.started_boot_at < attempt.placed_at:
        return True
    return row.pid != attempt.pid


def follow(service: ModelService, row: ModelInstance, attempt: Attempt | None) -> None:
    """Store where the instance was placed, or that its job waits again."""
    if attempt is None:
        row.host, row.gpu_uuids, row.port, row.pid = "", [], None, None
        row.started_boot_at = row.expected_ready_at = row.memory_bytes = None
    else:
        row.host, row.gpu_uuids = attempt.host, attempt.gpu_uuids
        row.pid, row.started_boot_at = attempt.pid, attempt.placed_at
        row.memory_bytes = attempt.job.gpu_memory_bytes
        expected_s = rows.expected_boot_s(service, rows.gpu_model(row))
        row.expected_ready_at = attempt.placed_at + timedelta(seconds=expected_s)
        snapshots.set_expected_ready(str(attempt.job_id), row.expected_ready_at)
    # The port is written by the part that starts the process.
    columns = ("host", "gpu_uuids", "pid", "started_boot_at", "memory_bytes", "expected_ready_at")
    row.save(update_fields=columns if attempt is not None else (*columns, "port"))


def note_answer(row: ModelInstance, now: datetime) -> None:
    row.answered_at = now
    row.save(update_fields=["answered_at"])
    rows.count_requests(row, now)
    if row.gpu_uuids:
        rows.learn_peak(row, now)


def apply(service: ModelService, row: ModelInstance, change: Change, now: datetime) -> None:
    """Change the state of an instance, unless another transaction changed it first."""
    old = InstanceState(row.state)
    if change.state not in TRANSITIONS[old]:
        raise IllegalInstanceTransition(f"an instance that is {old} can't be {change.state} next")
    columns: dict[str, object] = {"state": change.state.value, "since": now}
    if change.reason:
        columns["reason"] = change.reason
    if change.state in ENDED:
        columns |= {"ended_at": now, "in_flight": 0}
    if change.state is InstanceState.SLEEPING:
        columns |= {"left_bytes": None, "wake_at": None}
    if change.state is InstanceState.READY:
        columns |= {"ready_at": now, "answered_at": now, "reason": ""}
    if change.is_eviction:
        ModelService.objects.filter(pk=service.pk).update(evicted_at=now)
    if not ModelInstance.objects.filter(pk=row.pk, state=row.state).update(**columns):
        return
    old_since = row.since
    row.refresh_from_db()
    rows.count_requests(row, now)
    if change.command is Command.CANCEL and row.job_id is not None:
        job_queue.request_cancel(row.job_id, BY, now)
    _set_phase(row, change.state)
    if change.is_eviction:
        _event("MODEL_EVICTED", service, row, f"leaves its GPU{_because(row)}", now, "warning")
    if change.is_failure:
        _note_failure(service, row, change.reason, now)
    elif change.state is InstanceState.READY:
        _note_ready(service, row, old_since, now)
    elif change.state is InstanceState.SLEEPING:
        _note_sleep(service, row, now)
    elif change.state is InstanceState.STOPPED:
        _event("MODEL_UNLOADED", service, row, f"was unloaded{_because(row)}", now)


def apply_scale(service: ModelService, wanted: Scale, now: datetime) -> None:
    """Boot and unload instances of a service."""
    for id_, reason in wanted.unload:
        row = ModelInstance.objects.select_related("job").filter(pk=id_).first()
        if row is not None and service.enabled:
            release(service, row, reason, now)
        elif row is not None:
            unload(service, row, reason, now)
    for _ in range(wanted.boot):
        if not _ask_to_wake(service, now):
            boot(service, now)


def _ask_to_wake(service: ModelService, now: datetime) -> bool:
    """Whether an instance sleeps: it wakes if it has room, else it ends for a new one."""
    asleep = service.instances.filter(state=InstanceState.SLEEPING.value).order_by("wake_at", "pk")
    row = asleep.first()
    if row is None:
        return False
    if row.wake_at is None:
        ModelInstance.objects.filter(pk=row.pk).update(wake_at=now)
    return True


def release(
    service: ModelService,
    row: ModelInstance,
    reason: str,
    now: datetime,
    change: Change | None = None,
) -> None:
    """Let a ready instance sleep, if its server can and it gave the memory back before."""
    level = 0
    if row.state == InstanceState.READY.value and service.sleep_path and row.gpu_uuids:
        needs = max(filter(None, (rows.peak_bytes(row, now), row.memory_bytes)), default=None)
        level = lifecycle.level(
            rows.instance_fact(row),
            service.sleep_path,
            needs_bytes=None if needs is None else needs * len(row.gpu_uuids),
            host_free_bytes=rows.host_free_bytes(row.host),
        )
    ModelInstance.objects.filter(pk=row.pk).update(sleep_level=level)
    row.sleep_level = level
    if change is None:
        unload(service, row, reason, now)
    else:
        apply(service, row, change, now)


def judge_sleep(service: ModelService, row: ModelInstance, now: datetime) -> None:
    """Check by the driver's figures that a sleeping instance gave its memory back."""
    held = rows.held_bytes(row)
    most = lifecycle.most_left(rows.peak_bytes(row, now) or row.memory_bytes)
    release = lifecycle.judge(held, most, row.since, now)
    if release is lifecycle.Release.AWAITED:
        return
    has_left = release is lifecycle.Release.LEFT
    # Unknown memory counts as the memory that it had. Without that, its claim stays as it is.
    counts = rows.last_held_bytes(row, now) if held is None else held
    row.left_bytes, row.left_memory = counts, has_left
    row.save(update_fields=["left_bytes", "left_memory"])
    if counts is not None:
        snapshots.set_claimed_memory(str(row.job_id), counts, exclusive=False)
    if has_left:
        size = "an unknown part" if held is None else f"{held / 1024**3:.1f} GiB"
        text = (
            f"sleeps, but holds {size} of its GPU memory after"
            f" {lifecycle.RELEASES_WITHIN.total_seconds():g} s. It is stopped next time"
        )
        _event("SLEEP_LEFT_MEMORY", service, row, text, now, "warning")


def wake_up(row: ModelInstance, now: datetime) -> bool:
    """Claim the memory of a sleeping instance again; its server is then asked to wake."""
    moved = ModelInstance.objects.filter(pk=row.pk, state=InstanceState.SLEEPING.value).update(
        state=InstanceState.BOOTING.value,
        since=now,
        started_boot_at=now,
        expected_ready_at=now + timedelta(seconds=rows.expected_wake_s(row)),
        wake_at=None,
        reason="",
    )
    if moved:
        ref = str(row.job_id)
        snapshots.set_claimed_memory(ref, row.memory_bytes, exclusive=row.memory_bytes is None)
        snapshots.set_phase(ref, PHASES[InstanceState.BOOTING])
        row.refresh_from_db()
        wake("models")
    return bool(moved)


def unload(service: ModelService, row: ModelInstance, reason: str, now: datetime) -> None:
    """Drain a ready instance; cancel one that does not take requests yet."""
    if row.state == InstanceState.READY.value:
        apply(service, row, Change(state=InstanceState.DRAINING, reason=reason), now)
    elif row.state in (InstanceState.BOOTING.value, InstanceState.SLEEPING.value):
        change = Change(state=InstanceState.COOLING, reason=reason, command=Command.CANCEL)
        apply(service, row, change, now)


def evicted_one_boots(service: ModelService) -> bool:
    """Whether another evicted service is being loaded: they are loaded one after another."""
    if service.evicted_at is None:
        return False
    booting = ModelInstance.objects.filter(state=InstanceState.BOOTING.value)
    others = booting.filter(service__evicted_at__isnull=False).exclude(service=service)
    return others.exists()


def evict(
    instance_id: int, job_id: int, reason: str, now: datetime, *, may_sleep: bool = False
) -> None:
    """Unload an instance for a waiting job. It is loaded again when no job waits.

    may_sleep: the job also fits beside the sleeping instance.
    """
    row = ModelInstance.objects.select_related("service", "job").get(pk=instance_id)
    text = f"Job {job_id} needs its GPU: {reason}."
    if row.state == InstanceState.SLEEPING.value:
        change = Change(
            state=InstanceState.COOLING, reason=text, command=Command.CANCEL, is_eviction=True
        )
        apply(row.service, row, change, now)
    elif row.state == InstanceState.READY.value:
        change = Change(state=InstanceState.DRAINING, reason=text, is_eviction=True)
        if may_sleep:
            release(row.service, row, text, now, change)
        else:
            apply(row.service, row, change, now)
    else:
        return
    counters.add_eviction(EvictionReason.MODEL, row.gpu_uuids[0])


def hold_for(job_id: int, host: str, gpu_uuids: Iterable[str], now: datetime) -> None:
    """Keep these GPUs for the job until the models have left them."""
    for uuid in gpu_uuids:
        GpuHold.objects.update_or_create(
            host=host, gpu_uuid=uuid, defaults={"job_id": job_id, "until": now + HOLD_FOR}
        )


def boot(service: ModelService, now: datetime) -> ModelInstance | None:
    """Queue the job of a new instance; None: another host did that first."""
    locked = ModelService.objects.select_for_update().get(pk=service.pk)
    if not locked.enabled or rows.serving(locked) >= locked.max_instances:
        return None
    memory_bytes = rows.needed_memory(service)
    new = NewJob(
        argv=tuple(service.argv),
        name=service.name,
        priority=BLOCKING_PRIORITY,
        requirement=Requirement(
            gpus=service.gpus,
            memory_bytes=memory_bytes if service.gpus else None,
            exclusive=service.gpus > 0 and memory_bytes is None,
            gpu_uuid=rows.chosen_gpu(service),
        ),
        yield_options=YieldOptions(yield_signal="SIGTERM", grace=LEAVES_WITHIN),
    )
    job = job_queue.add_within(new, rows.job_owner(), now, model_service=service)
    row = ModelInstance.objects.create(service=service, job=job, since=now)
    _event("MODEL_BOOTING", service, row, "is being started", now)
    return row


def _note_sleep(service: ModelService, row: ModelInstance, now: datetime) -> None:
    """At level 1 the weights are in host memory, which is reserved as long."""
    needs = rows.peak_bytes(row, now) or row.memory_bytes
    if row.sleep_level == 1 and needs is not None:
        reserved = needs * len(row.gpu_uuids)
        Job.objects.filter(model_instance=row).update(memory_bytes=reserved)
    text = f"sleeps at level {row.sleep_level}{_because(row)}"
    _event("MODEL_ASLEEP", service, row, text, now)


def _note_ready(service: ModelService, row: ModelInstance, since: datetime, now: datetime) -> None:
    ModelService.objects.filter(pk=service.pk).update(
        failures=0, retry_at=None, problem="", evicted_at=None, wanted_at=None
    )
    if row.sleep_level:
        took = rows.learn_wake(row, since, now)
        Job.objects.filter(model_instance=row).update(memory_bytes=None)
        ModelInstance.objects.filter(pk=row.pk).update(sleep_level=0, left_bytes=None)
        _event("MODEL_READY", service, row, f"is awake{took}", now)
        return
    took = "" if row.started_boot_at is None else rows.learn_boot(service, row, now)
    _event("MODEL_READY", service, row, f"is ready{took}", now)


def _note_failure(service: ModelService, row: ModelInstance, reason: str, now: datetime) -> None:
    locked = ModelService.objects.select_for_update().get(pk=service.pk)
    locked.failures += 1
    pause = backoff(locked.failures)
    locked.retry_at, locked.problem = now + pause, reason
    locked.save(update_fields=["failures", "retry_at", "problem"])
    text = f"failed: {reason} Next boot in {pause.total_seconds():g} s at the earliest."
    _event("MODEL_FAILED", service, row, text, now, "warning")


def _because(row: ModelInstance) -> str:
    return f": {row.reason}" if row.reason else "."


def _set_phase(row: ModelInstance, state: InstanceState) -> None:
    if row.job_id is not None and row.gpu_uuids and state in PHASES:
        snapshots.set_phase(str(row.job_id), PHASES[state])


def _event(
    kind: str,
    service: ModelService,
    row: ModelInstance,
    text: str,
    now: datetime,
    severity: str = "info",
) -> None:
    events.add(
        kind,
        f"Model {service.name} {text}" + ("" if text.endswith(".") else "."),
        now=now,
        severity=severity,
        host=row.host,
        gpu_uuid=row.gpu_uuids[0] if row.gpu_uuids else "",
        job_ref="" if row.job_id is None else str(row.job_id),
    )


# Whether a model service could start on this host, without starting it.
#
# Files are looked up as its account could: a closed folder ends the search, so the answer shows
# nothing that the account may not see.


PORT, GPU = "9000", "0"
READ, EXECUTE = os.R_OK, os.X_OK
WORDS = {READ: "read", EXECUTE: "run"}


class Finding(Struct, frozen=True):
    """One check. is_ok None: unknown."""

    text: str
    is_ok: bool | None


class DryRun(Struct, frozen=True):
    """argv: the command as it would run, with an example of a port."""

    argv: list[str]
    findings: tuple[Finding, ...]


def dry_run(values: Mapping[str, Any], source: str = "") -> DryRun:
    """values: columns of a service without problems. source: the model's file, "" = none."""
    size = values.get("memory_mib")
    argv = policy.filled_argv(
        values["argv"],
        {"model": values["name"], "port": PORT, "gpu": GPU, "gpu_memory_fraction": _fraction(size)},
    )
    account = accounts.account_of_service("", run_as=settings.CONFIG.run_as)
    findings = [_program(policy.program_of(argv), account)]
    if source.startswith("/"):
        findings.append(_usable(Path(source), account, READ))
    findings.append(_memory(size))
    return DryRun(argv, tuple(findings))


def _program(program: str, account: Account) -> Finding:
    if "/" in program:
        return _usable(Path(program), account, EXECUTE)
    for folder in accounts.search_path(account).split(os.pathsep):
        finding = _usable(Path(folder) / program, account, EXECUTE)
        if finding.is_ok is not False:
            return finding
    text = (
        f"{program} is in no folder of PATH of {account.name}."
        " Install it, or choose an own command with its whole path."
    )
    return Finding(text, False)


def _memory(size_mib: int | None) -> Finding:
    if size_mib is None:
        return Finding("The first instance gets a whole GPU, until its memory is measured.", True)
    most = _largest_gpu()
    needed = shortest_size(size_mib * rows.MIB)
    if most is None:
        return Finding(f"Unknown whether a GPU has {needed}: none was read yet.", None)
    return Finding(f"{needed} of the {shortest_size(most)} of a GPU.", size_mib * rows.MIB <= most)


def _fraction(size_mib: int | None) -> str:
    total = _largest_gpu()
    placed = total if size_mib is None else size_mib * rows.MIB
    return policy.memory_fraction(placed, total)


def _largest_gpu() -> int | None:
    sizes = (gpu.memory_total_bytes for host in snapshots.newest_all() for gpu in host.gpus)
    return max((size for size in sizes if size is not None), default=None)


def _usable(path: Path, account: Account, right: int) -> Finding:
    """Whether the account can use this file, by the modes on the way to it."""
    for part in (*reversed(path.parents), path):
        needed = right if part == path else EXECUTE
        try:
            entry = part.lstat()
            # Only root's links lead to no place that the account could not find out about.
            if stat.S_ISLNK(entry.st_mode) and entry.st_uid != 0:
                return Finding(f"Unknown: {part} is a link, which is not followed.", None)
            entry = part.stat()
        except OSError as error:
            return Finding(f"{part} can't be used on this host: {error.strerror}.", False)
        if not _grants(part, entry, account, needed):
            word = "enter" if part != path else WORDS[needed]
            return Finding(f"{account.name} may not {word} {part} on this host.", False)
    return Finding(f"{account.name} may {WORDS[right]} {path}.", True)


def _grants(path: Path, entry: os.stat_result, account: Account, right: int) -> bool:
    if account.uid is None:
        return os.access(path, right)
    if account.uid == 0:
        return right == READ or bool(entry.st_mode & 0o111)
    if entry.st_uid == account.uid:
        return bool(entry.st_mode >> 6 & right)
    if entry.st_gid in {account.gid, *account.groups}:
        return bool(entry.st_mode >> 3 & right)
    return bool(entry.st_mode & right)


# Create, change and remove model services; each change is audited.


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
            unload(row, instance, f"{name} unloaded it.", now)
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
    apply(row.service, row, change, now)
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
