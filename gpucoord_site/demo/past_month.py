"""Thirty days of jobs, bookings, incidents and modes for the demo's reports, in bulk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from django.contrib.auth.models import User

from gpucoord_site.demo.days import DAY_S, DAYS, HOUR_S, SHORTEST_S
from gpucoord_site.demo.past import PEOPLE, PROGRAMS
from monitor.facts.formats import duration
from monitor.facts.readings import OwnerSource
from monitor.gpus.sampling.probes.simulated.scenario import Scenario
from monitor.models import Claim, Event, Incident, ProcessHour, ProcessUse
from scheduler.facts.jobs import JobState, Outcome
from scheduler.models import Attempt, Job

GIB = 1024**3
# GPUs of the first eight that jobs of the past ran on.
GPUS = (0, 7)
JOBS_A_DAY = 5
PID = 5_000_000


@dataclass(frozen=True, slots=True)
class MonthJob:
    """One job of the past; `empty_s`: booked before its first process."""

    number: int
    owner: str
    gpus: tuple[int, ...]
    submitted: float
    started: float
    ended: float
    empty_s: float
    used: float
    peak_gib: float
    priority: int


def jobs(gpus: int, seed: int, now: datetime) -> list[MonthJob]:
    """Jobs of the days before today, oldest first; they wait for each other on their GPUs."""
    now_t = int(now.timestamp())
    dice = Random(f"month {seed}")
    places = [gpu for gpu in GPUS if gpu < gpus]
    free = dict.fromkeys(places, 0.0)
    made: list[MonthJob] = []
    for day in range(DAYS - 1, 0, -1):
        for _ in range(JOBS_A_DAY if places else 0):
            submitted = now_t - day * DAY_S + dice.uniform(0, DAY_S - 6 * HOUR_S)
            made.append(_job(dice, len(made) + 1, submitted, free))
    return [job for job in made if job.ended < now_t - DAY_S / 2]


def _job(dice: Random, number: int, submitted: float, free: dict[int, float]) -> MonthJob:
    wanted = 2 if len(free) > 1 and dice.random() < 0.2 else 1
    chosen = tuple(sorted(free, key=lambda gpu: free[gpu])[:wanted])
    started = max(submitted + dice.uniform(1, 90), *(free[gpu] + 30 for gpu in chosen))
    empty = dice.choice((30, 60, 120, 1800, 2 * HOUR_S))
    ended = started + empty + dice.uniform(SHORTEST_S, 2.5 * HOUR_S)
    free.update(dict.fromkeys(chosen, ended))
    return MonthJob(
        number, dice.choice(PEOPLE), chosen, submitted, started, ended, empty,
        dice.uniform(0.1, 0.9), dice.uniform(4, 24), dice.choice((1, 2, 3, 3, 3, 4)),
    )  # fmt: skip


def seed_month(
    past: Sequence[MonthJob],
    users: Mapping[str, User],
    scenario: Scenario,
    host: str,
    now: datetime,
) -> None:
    """Writes the jobs in a few statements, with incidents and changes of the mode."""
    rows = Job.objects.bulk_create(_job_rows(past, users))
    Attempt.objects.bulk_create(_attempts(past, rows, scenario.uuids, host))
    Claim.objects.bulk_create(_claims(past, rows, scenario.uuids, host))
    uses = ProcessUse.objects.bulk_create(_uses(past, rows, scenario.uuids, host))
    ProcessHour.objects.bulk_create(_hours(past, uses))
    Incident.objects.bulk_create(_incidents(scenario, host, now))
    Event.objects.bulk_create(_modes(host, now))


def _job_rows(past: Sequence[MonthJob], users: Mapping[str, User]) -> Iterator[Job]:
    for job in past:
        name, command = PROGRAMS[job.number % len(PROGRAMS)]
        yield Job(
            owner=users[job.owner], name=name, command=command, argv=["/bin/sh", "-c", command],
            priority=job.priority, gpus=len(job.gpus), gpu_memory_bytes=60 * GIB,
            state=JobState.FINISHED.value, outcome=Outcome.SUCCEEDED.value, exit_code=0,
            submitted_at=_at(job.submitted), started_at=_at(job.started), ended_at=_at(job.ended),
        )  # fmt: skip


def _attempts(
    past: Sequence[MonthJob], rows: Sequence[Job], uuids: Sequence[str], host: str
) -> Iterator[Attempt]:
    for job, row in zip(past, rows, strict=True):
        yield Attempt(
            job=row, number=1, host=host, gpu_uuids=[uuids[gpu] for gpu in job.gpus],
            nonce=f"demo-month-{job.number}", account=job.owner, placed_at=_at(job.started),
            started_at=_at(job.started + 1), ended_at=_at(job.ended), exit_code=0,
            outcome=Outcome.SUCCEEDED.value, files_gone_at=_at(job.ended + DAY_S),
        )  # fmt: skip


def _claims(
    past: Sequence[MonthJob], rows: Sequence[Job], uuids: Sequence[str], host: str
) -> Iterator[Claim]:
    for job, row in zip(past, rows, strict=True):
        for gpu in job.gpus:
            yield Claim(
                host=host, gpu_uuid=uuids[gpu], job_ref=str(row.pk), owner=job.owner,
                memory_bytes=60 * GIB, from_at=_at(job.started), until_at=_at(job.ended),
                seen_at=_at(job.started + job.empty_s), freed_at=_at(job.ended + 5),
            )  # fmt: skip


def _uses(
    past: Sequence[MonthJob], rows: Sequence[Job], uuids: Sequence[str], host: str
) -> Iterator[ProcessUse]:
    """One process for each job, on its first GPU: what it did."""
    for job, row in zip(past, rows, strict=True):
        begin = job.started + job.empty_s
        held = job.ended - begin
        yield ProcessUse(
            host=host, pid=PID + job.number, start_ticks=int(begin * 100),
            gpu_id=uuids[job.gpus[0]],
            user=job.owner, program="python3", job_ref=str(row.pk), job_owner=job.owner,
            created_at=_at(begin), first_seen_at=_at(begin), last_seen_at=_at(job.ended),
            ended_at=_at(job.ended), source="process_utilization",
            owner_source=OwnerSource.JOB.value, **_sums(job, held),
        )  # fmt: skip


def _hours(past: Sequence[MonthJob], uses: Sequence[ProcessUse]) -> Iterator[ProcessHour]:
    for job, use in zip(past, uses, strict=True):
        begin = job.started + job.empty_s
        while begin < job.ended:
            hour = int(begin) // HOUR_S * HOUR_S
            end = min(job.ended, hour + HOUR_S)
            yield ProcessHour(use=use, t=hour, **_sums(job, end - begin))
            begin = end


def _sums(job: MonthJob, held: float) -> dict[str, Any]:
    return {
        "sm_s": held * job.used,
        "held_s": held,
        "known_s": held,
        "memory_byte_s": held * job.peak_gib * 0.8 * GIB,
        "memory_known_s": held,
        "peak_memory_bytes": int(job.peak_gib * GIB),
        "joules": held * 500 * job.used,
    }


def _incidents(scenario: Scenario, host: str, now: datetime) -> Iterator[Incident]:
    """Memory held idle and use outside the queue, every few days and today, while jobs waited."""
    kinds = (
        ("idle_held", "erin", 5, "Memory held idle"),
        ("sustained", "bob", 2, "Detected GPU hog"),
    )
    past = [
        (day, *kinds[day % 2], timedelta(days=day, hours=day % 7), timedelta(hours=2 + day % 4))
        for day in range(DAYS - 2, 1, -3)
    ]
    # Overuse in the last 24 h, for the mode.
    past.append((1, *kinds[1], timedelta(hours=7), timedelta(hours=1.6)))
    dana = ("sustained", "dana", 4, "Detected GPU hog")
    past.append((0, *dana, timedelta(hours=4), timedelta(hours=1.2)))
    for day, rule, user, gpu, title, before, lasted in past:
        if gpu >= scenario.size:
            continue
        since = now - before
        until = since + lasted
        is_hog = rule == "sustained"
        yield Incident(
            host=host, gpu_id=scenario.uuids[gpu], rule=rule, key=f"demo month {day}", user=user,
            program="python", since_at=since, opened_at=since, last_seen_at=until,
            closed_at=until, closed_by="gpucoord", severity="warning",
            mean_pct=95.0 if is_hog else 0.0, coverage=1.0,
            waited_jobs=2, waited_s=60.0 * (20 + day),
            hog_spans=[[since.timestamp(), until.timestamp()]] if is_hog else [],
            text=f"{title}: python ({user}) on GPU {gpu} for {duration(lasted)};"
            f" 2 jobs waited {20 + day} min",
        )  # fmt: skip


def _modes(host: str, now: datetime) -> Iterator[Event]:
    changes = (
        (12, "defensive", "warning", "Overuse in 34 % of the last 24 h."),
        (11, "cooperative", "info", "Overuse in 18 % of the last 24 h."),
    )
    for day, mode, severity, why in changes:
        yield Event(
            at=now - timedelta(days=day), kind="MODE_CHANGED", severity=severity, host=host,
            text=f"{host} is {mode} now. {why}",
        )  # fmt: skip


def _at(t: float) -> datetime:
    return datetime.fromtimestamp(t, UTC)
