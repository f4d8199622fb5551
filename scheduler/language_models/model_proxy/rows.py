"""Rows that the endpoint reads and writes: services, instances, callers, counters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F
from msgspec import Struct, field

from monitor.facts.accounts import TokenScope, scopes_of
from monitor.gpus.rows import hosts as host_rows
from monitor.gpus.rows import snapshot as snapshots
from monitor.owners import rows as tokens
from monitor.runtime.rows.database import FilledTables
from monitor.runtime.rows.wakeups import wake
from monitor.thresholds import rows as thresholds
from scheduler.facts.language_models import Instance, InstanceState, ModelNames, Service
from scheduler.fair_share.rows import FairShareAccounts
from scheduler.language_models.model_proxy.policy import Caller
from scheduler.language_models.model_services import rows as service_rows
from scheduler.language_models.prompts import rows as prompts
from scheduler.language_models.prompts.policy import PromptPolicy
from scheduler.limits.quotas import rows as quota_rows
from scheduler.models import ModelInstance, ModelService


def exists() -> bool:
    """Whether there is a model service, so that the endpoint must run."""
    return FilledTables(ModelService).read()[0]


def caller_of(token: str, now: datetime) -> Caller | None:
    """The user of the token; None: it is unknown, expired, revoked, or of an agent."""
    row = tokens.find(token, now)
    if row is None or row.agent_id is not None:
        return None
    scopes = scopes_of(row.scopes)
    return _caller(row.user, now, may_submit=TokenScope.SUBMIT in scopes)


def caller_of_host(user_id: int, now: datetime) -> Caller | None:
    """The user of a request that the endpoint of another host passes on; None: there is no more."""
    user = User.objects.filter(pk=user_id, is_active=True).first()
    return None if user is None else _caller(user, now, may_submit=True, is_passed_on=True)


def _caller(user: User, now: datetime, *, may_submit: bool, is_passed_on: bool = False) -> Caller:
    name = user.get_username()
    return Caller(
        user_id=user.pk,
        name=name,
        may_submit=may_submit,
        is_passed_on=is_passed_on,
        quota=quota_rows.of_person(user),
        used=prompts.used_today(name, now),
    )


class Situation(Struct, frozen=True, kw_only=True):
    """The endpoint's view of the models. made: when each service was created, Unix time."""

    names: ModelNames = field(default_factory=lambda: ModelNames({}))

    services: tuple[Service, ...] = ()
    made: Mapping[str, float] = field(default_factory=dict)
    policy: PromptPolicy = field(default_factory=PromptPolicy)
    deficits: Mapping[str, float] = field(default_factory=dict)


class SituationReader:
    """Reads the services; the shares of users change rarely and are cached."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._accounts = FairShareAccounts()

    def read(self, owners: Collection[str], now: datetime) -> Situation:
        """owners: users whose requests wait."""
        rows = list(service_rows.services())
        return Situation(
            services=tuple(_service(row, self._host, now) for row in rows),
            names=ModelNames({row.name: row.aliases for row in rows}),
            made={row.name: row.created_at.timestamp() for row in rows},
            policy=thresholds.current(PromptPolicy),
            deficits=self._deficits(owners, now) if len(owners) > 1 else {},
        )

    def _deficits(self, owners: Collection[str], now: datetime) -> dict[str, float]:
        """The target share minus the held part of the GPUs, as in the order of jobs."""
        accounts = self._accounts.at(now, demand=owners)
        return {
            name: account.target - account.charge / max(1, len(account.capacity.gpu_uuids))
            for name, account in accounts.items()
            if name in owners
        }


def _service(row: ModelService, host: str, now: datetime) -> Service:
    opened: list[ModelInstance] = row.open_ones  # type: ignore[attr-defined]
    usable = (InstanceState.READY.value, InstanceState.BOOTING.value)
    elsewhere, endpoints = service_rows.elsewhere(row, host, now)
    return Service(
        id=row.pk,
        name=row.name,
        concurrency=row.concurrency,
        max_instances=row.max_instances,
        is_enabled=row.enabled,
        problem=row.problem,
        batch=row.held_for_batch,
        elsewhere=elsewhere,
        endpoints=endpoints,
        instances=tuple(
            _instance(instance, row, host, now) for instance in opened if instance.state in usable
        ),
    )


def _instance(instance: ModelInstance, row: ModelService, host: str, now: datetime) -> Instance:
    """Instances of other hosts count, but take requests only of their own host's endpoint."""
    is_ready = instance.state == InstanceState.READY.value and instance.host in ("", host)
    is_ready = is_ready and not instance.is_closed
    is_booting = instance.state == InstanceState.BOOTING.value
    expected = instance.expected_ready_at
    seconds = max(0.0, (expected - now).total_seconds()) if expected else None
    instance.service = row
    return Instance(
        id=instance.pk,
        is_ready=is_ready and instance.port is not None,
        is_booting=is_booting,
        wakes=is_booting and instance.sleep_level > 0,
        ready_in_s=seconds if is_booting else None,
        url=instance.api_url,
        account=row.account,
    )


class Counts(Struct):
    """Counters to write of an instance; `in_flight` is absolute, the others are added."""

    in_flight: int = 0
    completed: int = 0
    failures: int = 0


@transaction.atomic
def write(
    counts: Mapping[int, Counts],
    uses: Collection[prompts.Use],
    boots: Collection[int],
    at: datetime,
) -> None:
    """Write counters of instances and the use of models, and ask for instances of services.

    The numbers of requests in flight are absolute, so that those of a killed process are corrected
    by the next one.
    """
    for id_, count in counts.items():
        ModelInstance.objects.filter(pk=id_).update(
            in_flight=count.in_flight,
            last_request_at=at,
            tasks_completed=F("tasks_completed") + count.completed,
            failures=F("failures") + count.failures,
        )
    _count_on_gpus({id_: count.completed for id_, count in counts.items() if count.completed})
    prompts.add_use(uses, at)
    for service in boots:
        service_rows.request_instance(service, at)
    if counts:
        wake("live")


def _count_on_gpus(completed: Mapping[int, int]) -> None:
    """Answered requests count as tasks of the instance, and of its GPUs."""
    if completed:
        rows = ModelInstance.objects.filter(pk__in=completed).exclude(gpu_uuids=[])
        of_gpus = list(rows.values_list("pk", "job", "gpu_uuids"))
        snapshots.lock_gpus([uuid for *_, gpu_uuids in of_gpus for uuid in gpu_uuids])
        for id_, job, gpu_uuids in of_gpus:
            snapshots.count_task(gpu_uuids, completed[id_])
            snapshots.count_of_claim(job, completed[id_])


def begin(host: str, address: str) -> None:
    """Requests that a killed endpoint had are gone: no instance of this host has any.

    address: where the other hosts reach this endpoint; "" = nowhere.
    """
    ModelInstance.objects.filter(host__in=("", host), in_flight__gt=0).update(in_flight=0)
    host_rows.set_models_address(host, address)
