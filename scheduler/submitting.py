"""What people hand in, from the form or by REST, becomes a NewJob or a list of refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Q

from monitor import policies
from monitor import store as monitor_store
from monitor.models import Gpu
from monitor.readings import Snapshot
from scheduler import dependencies, own_limits, store
from scheduler.fields import MOST_GPUS, MOST_RETRIES, Fields
from scheduler.jobs import PRIORITIES, Manners, NewJob, Refusal, Requirement
from scheduler.models import Job
from scheduler.policy import admission, bounds
from scheduler.policy.bounds import BoundsPolicy
from scheduler.units import parse_bytes
from scheduler.wishes import parse_capability, parse_moment, parse_signal


class UnableToSubmit(Exception):
    """The job can't be taken as it is; each refusal names a field."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        super().__init__("; ".join(f"{r.field}: {r.text}" for r in refusals))
        self.refusals = tuple(refusals)


def submit(raw: Mapping[str, Any], owner: User, now: datetime) -> Job:
    """Put what was handed in into the queue, or raise UnableToSubmit with all that is wrong."""
    return admit(checked(raw, now), owner, now)


def admit(new: NewJob, owner: User, now: datetime) -> Job:
    """Put a job that was read into the queue, if its owner may have such a one."""

    def check() -> None:
        if refusals := own_limits.refuse(new, owner):
            raise UnableToSubmit(refusals)

    return store.submit(new, owner, now, check)


def checked(raw: Mapping[str, Any], now: datetime) -> NewJob:
    """Read it, and refuse what no host could ever run."""
    new = read(raw, now)
    hosts = monitor_store.newest_all()
    limits = bounds.refusals(new, policies.current(BoundsPolicy), [snap.host for snap in hosts])
    dependent = map(_after, dependencies.problems(new.after))
    if refusals := [*refuse(new.requirement, hosts), *limits, *dependent]:
        raise UnableToSubmit(refusals)
    return new


def refuse(requirement: Requirement, hosts: Sequence[Snapshot]) -> list[Refusal]:
    """Why no host could ever run it; of several hosts, what the one with most GPUs says."""
    found = [_refusals(requirement, host) for host in hosts]
    if not found or not all(found):
        return []
    return found[max(range(len(hosts)), key=lambda at: len(hosts[at].gpus))]


def _refusals(requirement: Requirement, host: Snapshot) -> list[Refusal]:
    if not host.gpus and host.probe == "none":
        reason = host.problem or "no NVIDIA driver was found."
        return admission.refuse_without_gpus(requirement, reason)
    return admission.check(requirement, host.gpus, settings.CONFIG.gpu_power)


def _after(text: str) -> Refusal:
    """It can't wait for that job."""
    return Refusal(field="after", text=text)


def read(raw: Mapping[str, Any], now: datetime) -> NewJob:
    """Check every field, so that a person sees all mistakes at once."""
    fields = Fields(raw)
    moment = partial(parse_moment, now=now, zone=settings.TIME_ZONE)
    new = NewJob(
        **fields.what_runs(),
        name=fields.name(),
        cwd=fields.cwd(),
        env=fields.env(),
        priority=fields.whole("priority", 3, min(PRIORITIES), max(PRIORITIES)),
        requirement=_requirement(fields),
        cpus=fields.number("cpus", 1e5),
        memory_bytes=fields.amount("memory", parse_bytes),
        estimate=fields.seconds("estimate"),
        time_limit=fields.seconds("time_limit"),
        manners=_manners(fields),
        begin_at=fields.amount("begin", moment),
        after=fields.dependencies(),
        **fields.array(),
    )
    if fields.refusals:
        raise UnableToSubmit(fields.refusals)
    return new


def _requirement(fields: Fields) -> Requirement:
    return Requirement(
        gpus=fields.whole("gpus", 1, 0, MOST_GPUS),
        memory_bytes=fields.amount("gpu_memory", parse_bytes),
        exclusive=fields.flag("exclusive"),
        capability=fields.amount("capability", parse_capability),
        model=fields.pattern("model"),
        power=fields.number("power", 1e6),
        gpu_uuid=fields.amount("on_gpu", gpu_named) or "",
        share_pct=fields.percent("gpu_share"),
    )


def _manners(fields: Fields) -> Manners:
    return Manners(
        preemptible=fields.flag("preemptible"),
        requeue=fields.flag("requeue"),
        yield_signal=fields.amount("yield_signal", parse_signal) or "",
        grace=fields.grace(),
        retries=fields.whole("retries", 0, 0, MOST_RETRIES),
    )


def gpu_named(text: str) -> str:
    """The UUID of the GPU that a person names by its number, or by its UUID's beginning.

    Raises ValueError with a sentence.
    """
    wanted = text.strip().removeprefix("GPU ").strip()
    is_number = wanted.isdecimal() and len(wanted) < 5
    by = Q(index=int(wanted)) if is_number else Q(uuid__istartswith=wanted.replace("\0", " "))
    found = list(Gpu.objects.filter(by)[:2])
    if len(found) == 1:
        return found[0].uuid
    if found:
        raise ValueError(f'"{text}" names more than one GPU; write more of its UUID.')
    raise ValueError(f'"{text}" names no GPU here; write its number, or its UUID.')
