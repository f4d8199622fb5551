"""Parse jobs from the form or REST; refuse what no host could run, or owners without account."""

from __future__ import annotations

import grp
import os
import pwd
import resource
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Q

from monitor.facts.input_rules import is_number
from monitor.facts.readings import Snapshot
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Gpu
from monitor.runtime.rows import extensions
from monitor.thresholds import rows as thresholds
from scheduler.execution import policy as execution_policy
from scheduler.execution.policy import BoundsPolicy
from scheduler.execution.steps.specs import account_of_jobs
from scheduler.facts import job_fields
from scheduler.facts import people as soft_limits
from scheduler.facts.field_types import JobField, ParseContext
from scheduler.facts.job_fields import BY_NAME
from scheduler.facts.jobs import NewJob, Refusal
from scheduler.facts.scripts import Script
from scheduler.facts.units import LONGEST_TEXT, quoted
from scheduler.jobs.rows import relations
from scheduler.models import EngineStatus, Job
from scheduler.queue.planner import admission
from scheduler.queue.planner.preemption import PreemptionPolicy
from scheduler.runner import accounts, programs
from scheduler.runner.confine import landlock
from scheduler.submission.intake import policy as new_job
from scheduler.submission.intake.policy import AccountRule, UnableToSubmit, account_rule
from scheduler.submission.scripts import rows as script_rows

# Of one batch, with the elements of its arrays; and the rows of their dependencies.
MOST_JOBS = 10_000
MOST_DEPENDENCY_ROWS = new_job.MOST_DEPENDENCY_ROWS
# More mistakes of a batch are not listed.
MOST_REFUSALS = 50
# Why a group is left out.
WITHOUT_ROOT = "jobs run as the account of the service"
# A request without all of these says nothing to run.
WHAT_RUNS = {"command", "argv", "script"}


@contextmanager
def single() -> Iterator[None]:
    """Refusals of a single job have no index."""
    try:
        yield
    except UnableToSubmit as error:
        refusals = [replace(refusal, index=None) for refusal in error.refusals]
        raise UnableToSubmit(refusals, error.readable) from None


@single()
def checked(raw: Mapping[str, Any], now: datetime) -> NewJob:
    """Parse a job. Raises UnableToSubmit if no host could ever run it."""
    return checked_all([raw], now)[0]


def checked_all(
    raws: Sequence[Mapping[str, Any]], now: datetime, script: Script | None = None
) -> list[NewJob]:
    """Parse all jobs. Raises UnableToSubmit with the mistakes of all.

    script: in place of the registered scripts.
    """
    context = _context(now)
    if script is not None:
        context = replace(context, find_script=lambda _: script)
    parsed, refusals = _parsed(raws, context)
    refusals = together(
        refusals, [*_without_terminals(parsed), *_too_many(parsed), *impossible(parsed)]
    )
    if refusals:
        raise UnableToSubmit(refusals, parsed)
    return parsed


def further(raw: Mapping[str, Any], unreadable: Collection[str], now: datetime) -> list[Refusal]:
    """The mistakes in the other fields of a request whose `unreadable` fields were refused."""
    without = set(unreadable) | (WHAT_RUNS if WHAT_RUNS & set(unreadable) else set())
    readable = {name: raw[name] for name in raw.keys() & BY_NAME.keys() - set(unreadable)}
    try:
        checked(readable, now)
    except UnableToSubmit as error:
        return [refusal for refusal in error.refusals if refusal.field not in without]
    return []


def together(refusals: Sequence[Refusal], further: Iterable[Refusal]) -> list[Refusal]:
    """All refusals; the further ones only of fields that have none yet, whose values are known."""
    named = {(refusal.index, refusal.field) for refusal in refusals}
    added = (each for each in further if (each.index, each.field) not in named)
    return [*refusals, *added][:MOST_REFUSALS]


def _parsed(
    raws: Sequence[Mapping[str, Any]], context: ParseContext
) -> tuple[list[NewJob], list[Refusal]]:
    """One job for each request, with the defaults in place of fields that were refused.

    Stops where there are too many jobs or mistakes, so that no request costs too much.
    """
    parsed, refusals, jobs = list[NewJob](), list[Refusal](), 0
    for index, raw in enumerate(raws):
        if jobs > MOST_JOBS or len(refusals) >= MOST_REFUSALS:
            break
        try:
            new = new_job.read(raw, context)
        except UnableToSubmit as error:
            refusals += [replace(refusal, index=index) for refusal in error.refusals]
            (new,) = error.readable
        parsed.append(new)
        jobs += new.size
    return parsed, refusals


def _without_terminals(new: Sequence[NewJob]) -> list[Refusal]:
    if extensions.is_on("terminals"):
        return []
    text = "Terminals are switched off on this site (setting `extensions`)."
    return [
        Refusal(field="interactive", text=text, index=index)
        for index, job in enumerate(new)
        if job.interactive
    ]


def _too_many(new: Sequence[NewJob]) -> list[Refusal]:
    if sum(job.size for job in new) > MOST_JOBS:
        text = f"A batch makes at most {MOST_JOBS} jobs, with those of its arrays; split it up."
        return [Refusal(field="jobs", text=text)]
    if sum(job.size * len(job.after) for job in new) > MOST_DEPENDENCY_ROWS:
        text = f"The jobs of a batch wait for at most {MOST_DEPENDENCY_ROWS} others; split it up."
        return [Refusal(field="jobs", text=text)]
    return []


def impossible(new: Sequence[NewJob]) -> Iterator[Refusal]:
    """The refusals of jobs that no host could ever run, each with the index of its job."""
    hosts = snapshots.newest_all()
    in_force = thresholds.ThresholdsInForce()
    limits, preemption = in_force.of(BoundsPolicy), in_force.of(PreemptionPolicy)
    readings = [snap.host for snap in hosts]
    nodes_of = cache(_nodes_of_engine)
    # Jobs of a batch are often alike.
    names = {host.host.name for host in hosts}
    by_requirement = cache(
        lambda requirement, name: tuple(
            admission.refuse(requirement, _of_name(hosts, name), settings.CONFIG.gpu_power)
        )
    )
    dependent = relations.dependency_problems([job.after for job in new])
    for index, job in enumerate(new):
        too_large = [
            *by_requirement(job.requirement, job.host),
            *execution_policy.refusals(job, limits, readings),
        ]
        if too_large and (nodes := nodes_of(job.host)) is not None:
            # Another engine has nodes of its own, which gpucoord may not monitor.
            too_large = [
                *admission.refuse_by_nodes(job.requirement, nodes),
                *execution_policy.refusals(job, limits, ()),
            ]
        refusals = [
            *too_large,
            *_unknown_host(job.host, names),
            *_long_grace(job, preemption),
            *map(_after, dependent[index]),
        ]
        yield from (replace(refusal, index=index) for refusal in refusals)


def _of_name(hosts: Sequence[Snapshot], name: str) -> list[Snapshot]:
    return [host for host in hosts if name in ("", host.host.name)]


def _nodes_of_engine(host: str) -> list[int | None] | None:
    """The GPUs of each node of the engine that takes jobs for this host; None: there is none.

    The GPUs of a node are None if they are unknown.
    """
    statuses = EngineStatus.objects.filter(**({"host": host} if host else {}))
    nodes = [status.nodes for status in statuses]
    return [node.get("gpus") for of_engine in nodes for node in of_engine] if nodes else None


def _unknown_host(name: str, names: Collection[str]) -> list[Refusal]:
    if name == "" or name in names:
        return []
    there = ", ".join(sorted(names)[:10]) or "none has sent a reading yet"
    return [Refusal(field="host", text=f"There is no host {name}. Hosts: {there}.")]


def _long_grace(new: NewJob, policy: PreemptionPolicy) -> list[Refusal]:
    """Refuse a grace period above the policy's limit."""
    most = policy.most_grace_minutes
    if new.yield_options.grace is None or new.yield_options.grace <= timedelta(minutes=most):
        return []
    text = f"At most {most:g} min pass until a job that has to leave its GPU is killed."
    return [Refusal(field="grace", text=text)]


def _after(text: str) -> Refusal:
    return Refusal(field="after", text=text)


def read(raw: Mapping[str, Any], now: datetime) -> NewJob:
    """Check every field. Raises UnableToSubmit with all mistakes at once."""
    return new_job.read(raw, _context(now))


def _context(now: datetime) -> ParseContext:
    find_script = cache(script_rows.named)
    return ParseContext(now, settings.TIME_ZONE, cache(gpu_named), find_script, places())


def places() -> dict[str, str]:
    """Values that the commands of scripts can name."""
    return {"python": sys.executable, "programs": str(Path(programs.__file__).parent)}


def gpu_named(text: str) -> str:
    """The UUID of the GPU with this number, or with this beginning of its UUID.

    Raises ValueError with a sentence.
    """
    name = text.strip().removeprefix("GPU ").strip()
    # Databases are slow with long patterns, or refuse them.
    if len(name) > LONGEST_TEXT:
        raise ValueError(f"{quoted(name)} names no GPU here; write its number, or its UUID.")
    is_index = is_number(name, digits=4)
    query = Q(index=int(name)) if is_index else Q(uuid__istartswith=name.replace("\0", " "))
    matches = list(Gpu.objects.filter(query)[:2])
    if len(matches) == 1:
        return matches[0].uuid
    if matches:
        raise ValueError(f'"{name}" names more than one GPU; write more of its UUID.')
    raise ValueError(f"{quoted(name)} names no GPU here; write its number, or its UUID.")


def account_refusals(owner: User) -> list[Refusal]:
    """Refusals when this server has no account for the user's jobs.

    Call outside a transaction: looking up an account can be slow.
    """
    try:
        account_of_jobs(owner, settings.CONFIG.run_as)
    except accounts.MissingAccount as error:
        return [Refusal(field="owner", text=str(error))]
    return []


def group_refusals(jobs: Sequence[NewJob], owner: User) -> list[Refusal]:
    """Refusals of primary groups that the account is no member of, each with its job's index.

    Call outside a transaction, and only if the owner's jobs have an account.
    """
    if not any(job.group for job in jobs):
        return []
    account = account_of_jobs(owner, settings.CONFIG.run_as)
    refusals = []
    for index, job in enumerate(jobs):
        try:
            accounts.in_group(account, job.group)
        except accounts.MissingAccount as error:
            refusals.append(Refusal(field="group", text=str(error), index=index))
    return refusals


def with_left_out(jobs: Sequence[NewJob], owner: User) -> list[NewJob]:
    """The jobs with what of their requests this server does not give them, and the reason."""
    if not any(job.group or job.limits for job in jobs):
        return list(jobs)
    hard = {name: _hard_limit(name) for name in soft_limits.NAMES}
    keeps_group = account_of_jobs(owner, settings.CONFIG.run_as).uid is None
    completed = []
    for job in jobs:
        more = soft_limits.above(job.limits, hard)
        if keeps_group and job.group and not _is_own_group(job.group):
            more[f"group {job.group}"] = WITHOUT_ROOT
        completed.append(replace(job, left_out=job.left_out | more) if more else job)
    return completed


def _hard_limit(name: str) -> int:
    return resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1]


def _is_own_group(name: str) -> bool:
    with suppress(KeyError):
        return grp.getgrnam(name).gr_gid == os.getegid()
    return False


def current_account_rule() -> AccountRule:
    """The accounts that jobs of this server run as, for the status page."""
    name = str(os.geteuid())
    with suppress(KeyError):
        name = pwd.getpwuid(os.geteuid()).pw_name
    return account_rule(
        is_root=os.geteuid() == 0,
        run_as=settings.CONFIG.run_as,
        service_account=name,
        open_because=open_because(),
    )


def closed_paths() -> tuple[Path, ...]:
    """The files of gpucoord that the kernel closes to jobs of the same account."""
    return () if open_because() else protected_paths()


def open_because() -> str:
    """Why jobs of gpucoord's own account can open its files. "" = they can't."""
    if not settings.CONFIG.close_data:
        return "close_data = false"
    return _landlock_problem(tuple(map(str, protected_paths())))


def protected_paths() -> tuple[Path, ...]:
    """The files of gpucoord that hold secrets or decide about jobs."""
    candidates = [Path(settings.DATA), *settings.SECRET_FILES]
    if settings.CONFIG.checkpoints is not None:
        candidates.append(settings.CONFIG.checkpoints)
    return tuple(path for path in candidates if path.exists())


@cache
def _landlock_problem(closed: tuple[str, ...]) -> str:
    """Cached, because the result depends only on the kernel and the folders."""
    return "" if os.geteuid() == 0 else landlock.problem(closed)


# Submit an ended job again, with the same request.

# Fields whose values are deleted when a job ends, since they may be secrets.
DELETED = ("env", "environment", "stdin_base64")
# These come with a new request: left_out belongs to the environment.
GIVEN = (*DELETED, "left_out")
# These have their JSON in the row; other values are written as a user types them.
STORED_AS_JSON = frozenset(("argv", "script_args", "tags", "limits"))
# The command is chosen below; the earliest start has passed.
LEFT_OUT = frozenset((*GIVEN, "command", "argv", "script", "script_args", "begin", "array_limit"))
SHELL = ["/bin/sh", "-c"]


def request_of(job: Job, given: Mapping[str, Any]) -> dict[str, Any]:
    """The request of a new job like this one, as `POST /api/jobs/` takes it.

    given: the fields of GIVEN. An environment counts only if the job had one. A job of an array
    keeps its index. Raises UnableToSubmit if values that the job had are missing.
    """
    if refusals := _missing(job, given):
        raise UnableToSubmit(refusals)
    fields = {
        field.name: _value(job, field)
        for field in job_fields.stored_fields()
        if field.name not in LEFT_OUT
    }
    if job.gpu_memory_is_learned:
        # It is learned anew.
        fields["gpu_memory"] = None
    if job.array_index is not None:
        fields["array"] = str(job.array_index)
    values = {name: given.get(name) for name in GIVEN}
    if not job.has_environment:
        values["environment"] = None
    return _command(job) | fields | values


def _command(job: Job) -> dict[str, Any]:
    if job.script:
        return {"script": job.script, "script_args": job.script_args}
    if job.argv == [*SHELL, job.command]:
        return {"command": job.command}
    return {"argv": job.argv}


def _value(job: Job, field: JobField) -> Any:
    stored = getattr(job, field.column)
    return stored if field.name in STORED_AS_JSON else field.type.to_text(stored)


def _missing(job: Job, given: Mapping[str, Any]) -> list[Refusal]:
    refusals = []
    values = given.get("env") or {}
    if missing := [name for name in job.env_names if name not in values]:
        text = f"The values of {', '.join(missing)} were deleted when the job ended; give them."
        refusals.append(Refusal(field="env", text=text))
    if job.has_environment and given.get("environment") is None:
        text = "The environment of the job was deleted when it ended; give one, or {}."
        refusals.append(Refusal(field="environment", text=text))
    if job.has_input and given.get("stdin_base64") is None:
        text = "The standard input of the job was deleted when it ended; give one."
        refusals.append(Refusal(field="stdin_base64", text=text))
    return refusals
