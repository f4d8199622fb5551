"""Fills a new database for the demo: users, a month of history, running and waiting jobs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random

from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.db import transaction

from gpucoord_site.config.settings import Config
from gpucoord_site.demo.jobs import SUBMITTED_JOBS, seed_models, seed_quotas, seed_windows
from gpucoord_site.demo.past import (
    PEOPLE,
    PastJob,
    history,
    log_of,
    month_jobs,
    past_jobs,
    seed_month,
    waited_for_memory,
)
from gpucoord_site.demo.usage import PastUsage
from gpucoord_site.models import WelcomeHidden
from monitor.gpus.rows import snapshot as snapshots
from monitor.gpus.sampling.probes.simulated import Scenario
from monitor.journal.rows import events
from monitor.runtime.probes.process_identity import boot_id
from reports.models import ReportSchedule
from scheduler.facts.jobs import AttemptEnding, Identity, NewJob, Outcome, Requirement, YieldOptions
from scheduler.facts.plans import Placement
from scheduler.jobs.rows import transitions
from scheduler.jobs.rows.changes import request_cancel, submit
from scheduler.models import Attempt, IdleChoice, IdleTemplate, Job
from scheduler.runner import files
from scheduler.submission.batches import rows as batch_rows
from scheduler.submission.idle_work import step
from scheduler.submission.idle_work.policy import candidates

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
    before = month_jobs(config.simulated_gpus, config.simulated_seed, now)
    jobs = past_jobs(config.simulated_gpus, config.simulated_seed, now, first=len(before) + 1)
    with transaction.atomic():
        _seed_history(scenario, jobs, config.node, now)
        seed_quotas(users, config.node, config.simulated_gpus, now, config.time_zone)
        seed_windows(users, scenario.uuids, config.admin_user, now, config.time_zone)
        seed_month(before, users, scenario, config.node, config.data, now)
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
    # It makes the report of the last week at once.
    ReportSchedule.objects.create(name="Monday report")
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
    job.blocker_log = waited_for_memory(past.submitted_at)
    job.save(update_fields=["blocker_log"])
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


# The demo's batch in exclusive mode, and its idle work.

# A visitor sees its progress, and after a few minutes its end.
ITEMS, ITEM_S = 125, 4
JOBS_OF_TEMPLATE = 2
# The batch leaves the other idle GPUs to jobs.
MOST_GPUS = 2


def seed_batch(owner: User, home: Path, host: str, now: datetime) -> None:
    """A batch that takes GPUs without processes for itself."""
    snapshot = snapshots.newest(host)
    used = {process.gpu_uuid for process in snapshot.processes} if snapshot else set()
    free = [gpu.uuid for gpu in snapshot.gpus if gpu.uuid not in used] if snapshot else []
    request = {
        "argv": ["python3", "transcribe.py", "--seconds", str(ITEM_S)],
        "name": "whisper-urban-prepper",
        "cwd": str(home),
        "gpus": 1,
        "time_limit": 300,
        "estimate": ITEM_S,
    }
    items = [f"episode-{number:03}.wav" for number in range(1, ITEMS + 1)]
    chosen = free[-MOST_GPUS:]
    batch_rows.create(owner, "whisper-urban-prepper", request, items, now, chosen or None)


def seed_idle_work(users: Mapping[str, User], home: Path, now: datetime) -> None:
    """Three templates with signals: the page shows their chances.

    The GPU of the batch is idle when that has ended; the last template runs on idle CPUs.
    """

    def signal(value: float, hours_ago: float) -> dict[str, object]:
        return {"value": value, "at": (now - timedelta(hours=hours_ago)).isoformat()}

    common = {"cwd": str(home), "gpus": 1, "gpu_memory": 8 * 1024**3, "time_limit": 600}
    IdleTemplate.objects.create(
        name="curriculum-step",
        account=users["alice"],
        request={
            "argv": ["python3", "train.py", "--model", "curriculum", "--minutes", "3"],
            **common,
        },
        most_per_day=50,
        signals={
            "curriculum_weight": signal(2.0, 3),
            "improvement_velocity": signal(0.8, 3),
            "quality": signal(0.9, 12),
        },
        created_by="admin",
    )
    IdleTemplate.objects.create(
        name="refresh-embeddings",
        account=users["erin"],
        request={
            "argv": ["python3", "train.py", "--model", "bge-large", "--minutes", "2"],
            **common,
        },
        signals={"data_age_hours": signal(60, 1), "improvement_velocity": signal(0.2, 30)},
        created_by="admin",
    )
    IdleTemplate.objects.create(
        name="check-corpus",
        account=users["charlie"],
        request={
            "argv": ["python3", "prepare.py", "corpora/news-2026", "40"],
            "cwd": str(home),
            "gpus": 0,
            "time_limit": 600,
        },
        signals={"data_age_hours": signal(20, 1)},
        created_by="admin",
    )
    _seed_choices()


def _seed_choices() -> None:
    """Some jobs of the past two hours came from the templates."""
    templates = list(IdleTemplate.objects.select_related("account").order_by("name"))
    for_gpus = [row for row in templates if step.gpus_of(row.request)]
    for row in for_gpus:
        over = Job.objects.filter(owner=row.account, outcome=Outcome.SUCCEEDED.value)
        for job in over.order_by("-id")[:JOBS_OF_TEMPLATE]:
            at = job.submitted_at
            attempt = job.attempts.order_by("-number").first()
            IdleChoice.objects.create(
                at=at,
                host=attempt.host if attempt else "",
                gpu_uuid=attempt.gpu_uuids[0] if attempt and attempt.gpu_uuids else "",
                idle_s=312.0,
                template=row.name,
                job=job.pk,
                seed=job.pk,
                candidates=step.candidates_row(candidates(step.facts(for_gpus, at), at)),
            )
            Job.objects.filter(pk=job.pk).update(idle_template=row.name, priority=1)
