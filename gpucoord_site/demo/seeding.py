"""Fills a new database for the demo: users, a month of history, running and waiting jobs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random

from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.db import transaction

from gpucoord_site.config.settings import Config
from gpucoord_site.demo import past_month
from gpucoord_site.demo.batches import seed_batch, seed_idle_work
from gpucoord_site.demo.jobs import SUBMITTED_JOBS, seed_quotas, seed_windows
from gpucoord_site.demo.model_services import seed_models
from gpucoord_site.demo.past import PEOPLE, PastJob, history, log_of, past_jobs
from gpucoord_site.demo.usage import PastUsage
from gpucoord_site.models import WelcomeHidden
from monitor.gpus.sampling.probes.simulated.scenario import Scenario
from monitor.gpus.snapshot import rows as snapshots
from monitor.journal.rows import events
from monitor.runtime.probes.process_identity import boot_id
from scheduler.facts.jobs import AttemptEnding, Identity, NewJob, Outcome, Requirement, YieldOptions
from scheduler.facts.plans import Placement
from scheduler.jobs.lifecycle.rows import transitions
from scheduler.jobs.lifecycle.rows.queue import request_cancel, submit
from scheduler.models import Attempt
from scheduler.runner import files

GIB = 1024**3


def seed(config: Config, home: Path, password: str, now: datetime) -> None:
    """Everything that a page can show, as if users had worked on this server for two hours."""
    with events.unlogged():
        _seed(config, home, password, now)


def _seed(config: Config, home: Path, password: str, now: datetime) -> None:
    users = people(config.admin_user, password, now)
    scenario = Scenario(config.simulated_gpus, config.simulated_seed)
    # The host itself is real, so its past must fit.
    scenario.machine = (os.cpu_count() or 1, _memory_bytes())
    scenario.memory_used_part = _memory_used_part()
    before = past_month.jobs(config.simulated_gpus, config.simulated_seed, now)
    jobs = past_jobs(config.simulated_gpus, config.simulated_seed, now, first=len(before) + 1)
    with transaction.atomic():
        _seed_history(scenario, jobs, config.node, now)
        seed_quotas(users, config.node, config.simulated_gpus, now, config.time_zone)
        seed_windows(users, scenario.uuids, config.admin_user, now, config.time_zone)
        past_month.seed_month(before, users, scenario, config.node, now)
    for job in jobs:
        _seed_job(job, users[job.owner], scenario.uuids[job.gpu], config, home)
    for wish in SUBMITTED_JOBS:
        request = NewJob(
            argv=tuple(shlex.split(wish.command)),
            name=wish.name,
            cwd=str(home),
            priority=wish.priority,
            requirement=Requirement(
                gpus=min(wish.gpus, config.simulated_gpus),
                memory_bytes=wish.gib * GIB if wish.gib else None,
                exclusive=wish.exclusive,
                gpu_uuid=_uuid_of(wish.on_gpu, scenario.uuids),
            ),
            yield_options=YieldOptions(
                preemptible=wish.preemptible,
                grace=timedelta(minutes=1) if wish.preemptible else None,
            ),
            estimate=timedelta(minutes=wish.minutes),
            time_limit=timedelta(minutes=3 * wish.minutes),
        )
        submit(request, users[wish.owner], now - timedelta(seconds=wish.waited_s))
    seed_batch(users[config.admin_user], home, config.node, now)
    seed_idle_work(users, home, now)
    seed_models(users, scenario.uuids, home, now)


def _uuid_of(index: int | None, uuids: Sequence[str]) -> str:
    """The GPU of this number; "" = any, also on a small server."""
    return "" if index is None or len(uuids) <= index else uuids[index]


def people(admin: str, password: str, now: datetime) -> dict[str, User]:
    """The operator and ordinary users, by name."""
    # One password for all of them, hashed once, because hashing is slow.
    hashed = make_password(password)
    operator = User(username=admin, password=hashed, is_staff=True, is_superuser=True)
    others = [User(username=name, password=hashed) for name in PEOPLE if name != admin]
    User.objects.bulk_create([operator, *others])
    # Visitors of the demo came to see the dashboard.
    WelcomeHidden.objects.create(user=operator, hidden_at=now)
    return {user.username: user for user in User.objects.all()}


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _memory_used_part() -> float:
    """The used part (0..1) of the host's memory now."""
    free = os.sysconf("SC_AVPHYS_PAGES") / os.sysconf("SC_PHYS_PAGES")
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    available = next((int(line.split()[1]) for line in lines if "MemAvailable" in line), None)
    return 1 - (free if available is None else available * 1024 / _memory_bytes())


def _seed_history(scenario: Scenario, jobs: Sequence[PastJob], host: str, now: datetime) -> None:
    past = list(history(scenario, jobs, host, now))
    shots = [snapshot for snapshot, _ in past]
    lasting = [int((b.at - a.at).total_seconds()) for a, b in pairwise(shots)] + [1]
    snapshots.record_history(shots, lasting)
    days = PastUsage(scenario, host, now)
    days.watch(zip(shots, lasting, strict=True))
    days.write()
    # The sampler continues from here, so the begin of each GPU state stays known.
    snapshots.record(past[-1][0])
    for snapshot, notes in past:
        for note in notes:
            events.add(
                note.kind,
                note.text,
                now=snapshot.at,
                severity=note.severity,
                host=host,
                gpu_uuid=note.gpu_uuid,
            )


def _seed_job(past: PastJob, owner: User, gpu_uuid: str, config: Config, home: Path) -> None:
    """Move the job through the transitions of a real one, at past times."""
    requirement = Requirement(memory_bytes=past.gib * GIB)
    request = NewJob(
        command=past.command,
        name=past.name,
        cwd=str(home),
        priority=past.priority,
        requirement=requirement,
        time_limit=past.time_limit,
    )
    job = submit(request, owner, past.submitted_at)
    if job.pk != past.number:
        raise RuntimeError(f"job {past.number} of the demo's history has the number {job.pk}")
    with transaction.atomic():
        attempt = transitions.place(
            Placement(job_id=job.pk, host=config.node, gpu_uuids=(gpu_uuid,)),
            boot_id(),
            past.started_at,
        )
        if attempt is None:
            raise RuntimeError(f"job {job.pk} of the demo's history was not placed")
        _seed_run(attempt, past, config)


def _seed_run(attempt: Attempt, past: PastJob, config: Config) -> None:
    pid = 10_000 + attempt.job_id * 17
    identity = Identity(
        account=past.owner,
        runner_pid=pid,
        runner_start_ticks=1,
        pid=pid + 1,
        start_ticks=1,
        started_at=past.started_at,
    )
    transitions.record_start(attempt, identity)
    if past.outcome is Outcome.CANCELLED:
        request_cancel(attempt.job_id, past.owner, past.ended_at)
    folder = files.attempt_folder(config.data, attempt.job_id, attempt.number)
    files.make_folder(folder)
    log = log_of(past).encode()
    (folder / files.LOG).write_bytes(log)
    seconds = (past.ended_at - past.started_at).total_seconds()
    dice = Random(attempt.job_id)
    ending = AttemptEnding(
        outcome=past.outcome,
        ended_at=past.ended_at,
        exit_code=past.exit_code,
        signal=past.signal,
        cpu_s=round(seconds * dice.uniform(0.9, 1.4), 1),
        peak_memory_bytes=int(dice.uniform(2, 9) * GIB),
        log_bytes=len(log),
    )
    transitions.record_end(attempt, ending, past.ended_at)
