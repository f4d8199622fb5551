"""Thirty days of the simulated server before its last two hours, in minutes and hours; pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import ceil, floor, prod
from pathlib import Path
from random import Random
from typing import Any

from django.contrib.auth.models import User
from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.accounts import ClaimFact
from monitor.facts.formats import duration
from monitor.facts.readings import OwnerSource, Snapshot
from monitor.gpus.policy import changes as gpu_changes
from monitor.gpus.policy.changes import Note
from monitor.gpus.policy.states import with_states
from monitor.gpus.sampling.probes import simulated
from monitor.gpus.sampling.probes.simulated import (
    FIRST_PID,
    GIB,
    IDLE_W,
    LIMIT_W,
    RESERVED,
    TOTAL,
    Scenario,
    Shape,
    noise,
    pid_of,
)
from monitor.gpus.sampling.probes.simulated import Load as ScenarioLoad
from monitor.models import Claim, Event, Incident, ProcessHour, ProcessMinute, ProcessUse
from monitor.owners.policy import attribute
from scheduler.facts.blockers import BlockerCode
from scheduler.facts.jobs import JobState, Outcome
from scheduler.models import Attempt, Job
from scheduler.queue.planner import blockers as stored_blockers
from scheduler.runner import files

DAY_S, HOUR_S, MINUTE_S = 86_400, 3_600, 60
DAYS = 30
# Very short programs would fill the table of processes.
SHORTEST_S = 600
# A gap in every chart, as if gpucoord had not been running.
DOWN_FROM_S, DOWN_UNTIL_S = 15 * HOUR_S + 600, 14 * HOUR_S + 900
PEOPLE = ("alice", "bob", "charlie", "dana", "erin", "frank")
# The nightly parameter sweep, in UTC.
NIGHT_GPU, NIGHT_FROM_S, NIGHT_S = 5, 20 * HOUR_S, 10 * HOUR_S
# GPUs of the first eight for interactive runs, with their free memory.
ROOM_GIB = {0: 60, 7: 70}


class DemoLife(Struct, frozen=True):
    """One process on one GPU, from beginning to end."""

    user: str | None
    program: str
    pid: int
    start_ticks: int
    gpu: int
    began: float
    ended: float
    gib: float | None
    shape: Shape

    def at(self, t: float, seed: int) -> float:
        """Its use in percent of the GPU."""
        return self.shape(t - self.began, noise(t, 600, seed, self.pid))


class Load(Struct, frozen=True):
    """A GPU in one step: its use, and each process's part of it in percent."""

    t: int
    gpu: int
    busy_pct: float
    parts: tuple[tuple[DemoLife, float], ...]

    @property
    def memory_bytes(self) -> int:
        return min(TOTAL - RESERVED, sum(int((life.gib or 0) * GIB) for life, _ in self.parts))

    @property
    def power_w(self) -> float:
        return IDLE_W + (LIMIT_W * 0.94 - IDLE_W) * (self.busy_pct / 100)

    @property
    def figures(self) -> Mapping[str, float]:
        """Means of the step, by the name of the figure of the GPU."""
        return {
            "utilization_pct": self.busy_pct,
            "memory_used_bytes": self.memory_bytes,
            "power_w": self.power_w,
            "temperature_c": 30 + 0.46 * self.busy_pct,
        }


def lives(gpus: int, seed: int, now_t: int) -> list[DemoLife]:
    """All processes on GPUs in these days."""
    since = now_t - DAYS * DAY_S
    return [
        *_scripted(gpus, seed, since, now_t),
        *_own(gpus, seed, since, now_t),
        *_nightly(gpus, since, now_t),
    ]


def loads(
    all_lives: Sequence[DemoLife], gpus: int, seed: int, times: Sequence[int]
) -> Iterator[Load]:
    """Each GPU at each of these times."""
    on: dict[tuple[int, int], list[DemoLife]] = {}
    for life in all_lives:
        for hour in range(int(life.began // HOUR_S), int(life.ended // HOUR_S) + 1):
            on.setdefault((life.gpu, hour), []).append(life)
    for t in times:
        for gpu in range(gpus):
            others = on.get((gpu, t // HOUR_S), ())
            there = [life for life in others if life.began <= t < life.ended]
            yield _load(t, gpu, there, seed)


def watched(t: int, now_t: int) -> bool:
    """Whether gpucoord was running at that time."""
    return not now_t - DOWN_FROM_S <= t < now_t - DOWN_UNTIL_S


def _load(t: int, gpu: int, there: Sequence[DemoLife], seed: int) -> Load:
    demands = [life.at(t, seed) for life in there]
    busy = 100 * (1 - prod(1 - demand / 100 for demand in demands))
    scale = busy / sum(demands) if sum(demands) else 0.0
    parts = zip(there, (demand * scale for demand in demands), strict=True)
    return Load(t, gpu, busy, tuple(parts))


def _scripted(gpus: int, seed: int, since: int, until: int) -> Iterator[DemoLife]:
    """The runs of the scenario's programs, under the pids that the scenario gives them."""
    scripts: list[simulated.Script] = []
    for turn, first in enumerate(range(0, gpus, 8)):
        scripts += simulated.cast(first, min(8, gpus - first), turn + seed)
    for number, script in enumerate(scripts):
        if script.runs_s < SHORTEST_S:
            continue
        first = floor((since - script.offset_s) / script.every_s)
        for run in range(first, ceil((until - script.offset_s) / script.every_s)):
            began = run * script.every_s + script.offset_s
            if began + script.runs_s > since:
                yield from _runs(script, number, run, began)


def _runs(script: simulated.Script, number: int, run: int, began: float) -> Iterator[DemoLife]:
    for gpu in script.gpus:
        yield DemoLife(
            user=script.user,
            program=script.program,
            pid=pid_of(number, run),
            # An unknown process has an unknown begin.
            start_ticks=int(began * 100) if script.user else 0,
            gpu=gpu,
            began=began,
            ended=began + script.runs_s,
            gib=script.gib,
            shape=script.shape,
        )


def _nightly(gpus: int, since: int, until: int) -> Iterator[DemoLife]:
    """A user's sweep on nine of ten nights: a recurring pattern for the page of incidents."""
    if gpus <= NIGHT_GPU:
        return
    for day in range(since // DAY_S + 1, until // DAY_S):
        began = day * DAY_S + NIGHT_FROM_S
        if day % 10 and began + NIGHT_S < until - 2 * HOUR_S:
            yield DemoLife(
                user="frank",
                program="python",
                pid=FIRST_PID + 800_000 + day % 90_000,
                start_ticks=began * 100,
                gpu=NIGHT_GPU,
                began=began,
                ended=began + NIGHT_S,
                gib=20,
                shape=simulated.hog,
            )


def _own(gpus: int, seed: int, since: int, until: int) -> Iterator[DemoLife]:
    """Interactive runs: mostly in office hours, long runs over night."""
    dice = Random(seed)
    for gpu in (gpu for gpu in range(gpus) if gpu in ROOM_GIB):
        t = since + dice.uniform(0, 4 * HOUR_S)
        while t < until:
            office = 8 <= t % DAY_S / HOUR_S < 19
            ended = t + dice.uniform(0.7, 3.5 if office else 8) * HOUR_S
            yield DemoLife(
                user=dice.choice(PEOPLE),
                program=dice.choice(("python", "python3", "torchrun", "jupyter")),
                pid=FIRST_PID + 700_000 + dice.randrange(90_000),
                start_ticks=int(t * 100),
                gpu=gpu,
                began=t,
                ended=ended,
                gib=ROOM_GIB[gpu] * dice.uniform(0.2, 0.9),
                shape=dice.choice((simulated.training, simulated.serving, simulated.idle)),
            )
            t = ended + dice.uniform(0.1, 1.5 if office else 6) * HOUR_S


# Two hours of finished jobs of the demo, and the snapshots of that time.


# Hours with a sample for each second; fewer of a large server, so that the demo starts soon.
HOURS, HOURS_LARGE = 2, 1
# GPUs of the first eight with free memory in the scenario, and how much.
JOB_ROOM_GIB = {0: 60, 6: 20, 7: 70}
PROGRAMS = (
    ("train vit-base", "python3 train.py --model vit-base --lr 1e-3"),
    ("finetune mistral", "python3 train.py --model mistral-7b --lr 2e-5"),
    ("gpt2 baseline", "python3 train.py --model gpt2-medium"),
    ("probe layers", "python3 train.py --model probe-12 --lr 3e-3"),
    ("ablation no-dropout", "python3 train.py --model ablation-4"),
)
# The tag "project" of these programs.
PROJECTS = ("vision", "assistant", "assistant", "interpretability", "vision")
# Lines of a log: those of a long run are further apart.
MOST_LINES = 600
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total"
    " capacity of 79.11 GiB of which 1.73 GiB is free."
)


class PastJob(Struct, frozen=True, kw_only=True):
    """A job that has ended. number: its id."""

    number: int = 0
    owner: str
    name: str
    command: str
    gpu: int
    gib: int
    submitted_at: datetime
    started_at: datetime
    ended_at: datetime
    outcome: Outcome = Outcome.SUCCEEDED
    exit_code: int | None = 0
    signal: int | None = None
    problem: str = ""
    priority: int = 3
    time_limit: timedelta | None = None

    @property
    def load(self) -> ScenarioLoad:
        """Its load on its GPU, for the charts."""
        return ScenarioLoad(
            gpu=self.gpu,
            pid=FIRST_PID + 900_000 + int(self.started_at.timestamp()) % 90_000,
            gib=self.gib,
            began=self.started_at.timestamp(),
            ended=self.ended_at.timestamp(),
        )


def sampled_hours(gpus: int) -> int:
    """For how many hours before now there are samples and the jobs of `past_jobs`."""
    return HOURS_LARGE if gpus > LARGE else HOURS


def past_jobs(gpus: int, seed: int, now: datetime, first: int = 1) -> list[PastJob]:
    """Jobs one after another on each GPU with free memory, oldest first, with every outcome.

    first: the number of the first of them.
    """
    dice = Random(seed)
    hours = sampled_hours(gpus)
    jobs = [job for gpu in range(gpus) if gpu in JOB_ROOM_GIB for job in _on(gpu, dice, now, hours)]
    ends = iter(_unhappy_ends())
    every = max(1, len(jobs) // 5)
    jobs = [_ended(job, next(ends, {}) if i % every == 2 else {}) for i, job in enumerate(jobs)]
    jobs.sort(key=lambda job: job.submitted_at)
    return [replace(job, number=i) for i, job in enumerate(jobs, start=first)]


def _on(gpu: int, dice: Random, now: datetime, hours: int) -> Iterator[PastJob]:
    at = now - timedelta(hours=hours) + timedelta(seconds=dice.uniform(60, 600))
    while (ended := at + timedelta(seconds=dice.uniform(240, 1300))) < now - timedelta(seconds=40):
        name, command = dice.choice(PROGRAMS)
        yield PastJob(
            owner=dice.choice(PEOPLE),
            name=name,
            command=command,
            gpu=gpu,
            gib=round(JOB_ROOM_GIB[gpu] * dice.uniform(0.3, 0.95)),
            submitted_at=at - timedelta(seconds=dice.choice((0.04, 3, 95, 640, 1500))),
            started_at=at,
            ended_at=ended,
            priority=dice.choice((2, 3, 3, 3, 4)),
        )
        at = ended + timedelta(seconds=dice.uniform(15, 240))


def _unhappy_ends() -> list[dict[str, object]]:
    return [
        {"outcome": Outcome.FAILED, "exit_code": 1},
        {"outcome": Outcome.CANCELLED, "exit_code": 143},
        {"outcome": Outcome.TIMED_OUT, "exit_code": None, "signal": 9},
        {
            "outcome": Outcome.FAILED,
            "exit_code": 127,
            "command": "pyhton3 train.py --model vit-base",
        },
    ]


def _ended(job: PastJob, end: dict[str, object]) -> PastJob:
    job = replace(job, **end)
    if job.outcome is not Outcome.TIMED_OUT:
        return job
    limit = timedelta(minutes=(job.ended_at - job.started_at) // timedelta(minutes=1))
    return replace(job, time_limit=limit, ended_at=job.started_at + limit)


def log_of(job: PastJob) -> str:
    """The output of such a job."""
    if job.exit_code == 127:
        return f"/bin/sh: 1: {job.command.split()[0]}: not found\n"
    seconds = (job.ended_at - job.started_at).total_seconds()
    return "\n".join(_lines(job.name, job.owner, seconds, job.exit_code)) + "\n"


def _lines(name: str, owner: str, seconds: float, exit_code: int | None) -> Iterator[str]:
    dice = Random(name + owner)
    looks = int(seconds / 2)
    yield f"{name}: simulated, nothing was computed"
    for step in range(25, looks * 25, 25 * max(1, looks // MOST_LINES)):
        loss = 1.7 + 8.4 * math.exp(-step / 3000) + dice.gauss(0, 0.03)
        yield f"step {step:>6}  loss {loss:.4f}  {118 + dice.gauss(0, 3):.0f} k tokens/s"
    if exit_code == 0:
        yield "done"
    elif exit_code == 1:
        yield from ("Traceback (most recent call last):", '  File "train.py", line 214, in step')
        yield OUT_OF_MEMORY
    elif exit_code == 143:
        yield "SIGTERM: saving checkpoints/last.pt … done"


# The last minutes in seconds, older times in larger steps: a chart cannot show more. Large servers
# have larger steps, so that the demo starts soon.
FINE_MINUTES, COARSE_STEP_S = 15, 5
LARGE, FINE_MINUTES_LARGE, COARSE_STEP_LARGE_S = 16, 2, 20
# A GPU stays warm for a while after a job.
COOLING_S = 90


def history(
    scenario: Scenario, jobs: Sequence[PastJob], host: str, now: datetime
) -> Iterator[tuple[Snapshot, list[Note]]]:
    """Snapshots up to `now`, oldest first, each with its events."""
    last: Snapshot | None = None
    for at in _instants(now, scenario.size):
        t = at.timestamp()
        sweep = scenario.at(at, _loads(jobs, t))
        claims = _claims(jobs, scenario, t)
        processes = attribute(sweep.processes, sweep.identities, claims)
        before = {gpu.uuid: gpu for gpu in last.gpus} if last else {}
        states = with_states(sweep.gpus, processes, claims, before, at, watched=False)
        snapshot = Snapshot(
            seq=last.seq + 1 if last else 1,
            at=at,
            probe="simulated",
            host=scenario.host(at, host),
            gpus=states.gpus,
            processes=processes,
        )
        yield snapshot, gpu_changes.of_sweep(last, snapshot, states.changes)
        last = snapshot


def _instants(now: datetime, gpus: int) -> Iterator[datetime]:
    end = int(now.timestamp())
    minutes = FINE_MINUTES_LARGE if gpus > LARGE else FINE_MINUTES
    step = COARSE_STEP_LARGE_S if gpus > LARGE else COARSE_STEP_S
    fine = end - 60 * minutes
    for t in [*range(end - 3600 * sampled_hours(gpus), fine, step), *range(fine, end)]:
        yield datetime.fromtimestamp(t, now.tzinfo)


def _loads(jobs: Sequence[PastJob], t: float) -> list[ScenarioLoad]:
    return [job.load for job in jobs if job.started_at.timestamp() <= t < _end_of(job) + COOLING_S]


def _claims(jobs: Sequence[PastJob], scenario: Scenario, t: float) -> list[ClaimFact]:
    return [
        ClaimFact(
            job_ref=str(job.number),
            seen=job.started_at,
            gpu_uuid=scenario.uuids[job.gpu],
            owner=job.owner,
            leader_pid=job.load.pid,
        )
        for job in jobs
        if job.started_at.timestamp() <= t < _end_of(job)
    ]


def _end_of(job: PastJob) -> float:
    return job.ended_at.timestamp()


# Thirty days of jobs, bookings, incidents and modes for the demo's reports, in bulk.

# GPUs of the first eight that jobs of the past ran on.
GPUS = (0, 7)
JOBS_A_DAY = 5
PID = 5_000_000


class MonthJob(Struct, frozen=True):
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

    @property
    def kind(self) -> int:
        """Its number in PROGRAMS."""
        return self.number % len(PROGRAMS)

    @property
    def log(self) -> bytes:
        lines = _lines(PROGRAMS[self.kind][0], self.owner, self.ended - self.started, 0)
        return "\n".join([*lines, ""]).encode()


def month_jobs(gpus: int, seed: int, now: datetime) -> list[MonthJob]:
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
    data: Path,
    now: datetime,
) -> None:
    """Writes the jobs in a few statements, their logs, incidents and changes of the mode."""
    rows = Job.objects.bulk_create(_job_rows(past, users))
    logs = [job.log for job in past]
    Attempt.objects.bulk_create(_attempts(past, rows, logs, scenario.uuids, host))
    Claim.objects.bulk_create(_month_claims(past, rows, scenario.uuids, host))
    uses = ProcessUse.objects.bulk_create(_uses(past, rows, scenario.uuids, host))
    ProcessHour.objects.bulk_create(_parts(ProcessHour, HOUR_S, past, uses))
    ProcessMinute.objects.bulk_create(_parts(ProcessMinute, MINUTE_S, past, uses))
    for row, log in zip(rows, logs, strict=True):
        folder = files.attempt_folder(data, row.pk, 1)
        files.make_folder(folder)
        (folder / files.LOG).write_bytes(log)
    Incident.objects.bulk_create(_incidents(scenario, host, now))
    Event.objects.bulk_create(_modes(host, now))


def _job_rows(past: Sequence[MonthJob], users: Mapping[str, User]) -> Iterator[Job]:
    for job in past:
        name, command = PROGRAMS[job.kind]
        yield Job(
            owner=users[job.owner], name=name, command=command, argv=["/bin/sh", "-c", command],
            priority=job.priority, gpus=len(job.gpus), gpu_memory_bytes=60 * GIB,
            state=JobState.FINISHED.value, outcome=Outcome.SUCCEEDED.value, exit_code=0,
            submitted_at=_at(job.submitted), started_at=_at(job.started), ended_at=_at(job.ended),
            blocker_log=waited_for_memory(_at(job.submitted)),
            tags={"project": PROJECTS[job.kind]},
        )  # fmt: skip


def waited_for_memory(since: datetime) -> str:
    """The log of reasons of a job that waited until a GPU had room for it."""
    return stored_blockers.log_entry(BlockerCode.GPU_MEMORY.value, since)


def _attempts(
    past: Sequence[MonthJob],
    rows: Sequence[Job],
    logs: Sequence[bytes],
    uuids: Sequence[str],
    host: str,
) -> Iterator[Attempt]:
    for job, row, log in zip(past, rows, logs, strict=True):
        yield Attempt(
            job=row, number=1, host=host, gpu_uuids=[uuids[gpu] for gpu in job.gpus],
            nonce=f"demo-month-{job.number}", account=job.owner, placed_at=_at(job.started),
            started_at=_at(job.started + 1), ended_at=_at(job.ended), exit_code=0,
            outcome=Outcome.SUCCEEDED.value, log_bytes=len(log), use_due_at=_at(job.ended),
            cpu_s=round(job.used * (job.ended - job.started)), peak_memory_bytes=4 * GIB,
        )  # fmt: skip


def _month_claims(
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


def _parts(
    model: type, step: int, past: Sequence[MonthJob], uses: Sequence[ProcessUse]
) -> Iterator[Any]:
    """The use in each minute or hour, whose length is `step`."""
    for job, use in zip(past, uses, strict=True):
        begin = job.started + job.empty_s
        while begin < job.ended:
            t = int(begin) // step * step
            end = min(job.ended, t + step)
            yield model(use=use, t=t, **_sums(job, end - begin))
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
            f" 2 jobs waited {20 + day} min in all",
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
