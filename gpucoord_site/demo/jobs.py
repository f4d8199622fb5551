"""The jobs, quotas, past usage, time windows and model services of the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, time, timedelta
from pathlib import Path
from random import Random
from zoneinfo import ZoneInfo

from django.contrib.auth.models import User
from msgspec import Struct

from monitor.gpus.sampling.probes.simulated import NAME
from scheduler.facts.jobs import NewJob, Requirement
from scheduler.facts.language_models import (
    InstanceState,
    NewPrompt,
    PredictionMode,
    PromptStatus,
    PromptType,
    Role,
)
from scheduler.jobs.rows import changes as job_queue
from scheduler.language_models.prompts import rows as prompts
from scheduler.limits.quotas.policy import charging
from scheduler.limits.time_windows import rows as window_rows
from scheduler.models import (
    DailyGpuUsage,
    Job,
    ModelBoot,
    ModelHour,
    ModelInstance,
    ModelService,
    ModelUse,
    Prompt,
    Quota,
    TimeWindow,
    UsageShare,
)


class DemoJob(Struct, frozen=True, kw_only=True):
    owner: str
    name: str
    command: str
    gpus: int = 1
    gib: int | None = None
    exclusive: bool = False
    priority: int = 3
    minutes: int = 20
    waited_s: float = 2
    preemptible: bool = False
    # The only GPU that may run it, of the first eight; None = any.
    on_gpu: int | None = None


# The waiting jobs want GPUs that other users have. So the GPU of the batch is idle after it, and
# gets work from a template.
# Short jobs end while a visitor watches; long ones show expected starts and ends on the timeline.
SUBMITTED_JOBS = (
    DemoJob(
        owner="alice",
        name="pretrain gpt2-xl",
        command="python3 train.py --model gpt2-xl --lr 2e-4 --minutes 150",
        gib=64,
        minutes=150,
        preemptible=True,
    ),
    DemoJob(
        owner="bob",
        name="distil whisper",
        on_gpu=2,
        command="python3 train.py --model whisper-small --minutes 6",
        gib=40,
        minutes=6,
    ),
    DemoJob(
        owner="erin",
        name="embed papers",
        command="python3 train.py --model bge-large --minutes 40",
        gib=12,
        minutes=40,
        preemptible=True,
    ),
    DemoJob(
        owner="charlie",
        name="prepare corpus",
        command="python3 prepare.py corpora/news-2026",
        gpus=0,
        minutes=30,
    ),
    DemoJob(
        owner="dana",
        name="finetune llama-70b",
        command="python3 train.py --model llama-70b --lr 1e-5 --minutes 120",
        gpus=4,
        gib=70,
        priority=2,
        minutes=120,
        waited_s=41 * 60,
    ),
    DemoJob(
        owner="frank",
        name="benchmark alone",
        on_gpu=3,
        command="python3 train.py --model resnet50 --minutes 20",
        exclusive=True,
        priority=2,
        minutes=20,
        waited_s=18 * 60,
    ),
    DemoJob(
        owner="bob",
        name="gpt2 baseline, seed 2",
        on_gpu=2,
        command="python3 train.py --model gpt2-medium --minutes 45",
        gib=60,
        priority=2,
        minutes=45,
        waited_s=9 * 60,
    ),
    DemoJob(
        owner="alice",
        name="nightly evaluation",
        on_gpu=4,
        command="python3 train.py --model eval-suite --minutes 60",
        gib=32,
        priority=1,
        minutes=60,
        preemptible=True,
        waited_s=55 * 60,
    ),
)


GIB = 1024**3
# The part of all GPUs that each user took recently.
TOOK = {"alice": 0.27, "bob": 0.16, "charlie": 0.05, "dana": 0.14, "erin": 0.09, "frank": 0.11}


def seed_quotas(users: Mapping[str, User], host: str, gpus: int, now: datetime, zone: str) -> None:
    """Limits that allow everything that the demo runs."""
    Quota.objects.create(gpus=max(4, gpus // 2), queued=40, gpu_minutes=360.0 * gpus)
    Quota.objects.create(
        user=users["alice"], share_pct=30, gpus=max(2, gpus // 2), jobs=8,
        memory_bytes=gpus * 40 * GIB, queued=20, priority=4, gpu_minutes=540.0 * gpus,
    )  # fmt: skip
    Quota.objects.create(user=users["dana"], share_pct=20, gpus=2, gpu_minutes=180.0 * gpus)
    _seed_use(host, gpus, now, zone)


def _seed_use(host: str, gpus: int, now: datetime, zone: str) -> None:
    today = charging.day(now, zone).from_at
    seconds = (now - today).total_seconds()
    UsageShare.objects.bulk_create(
        UsageShare(host=host, owner=name, usage=part) for name, part in TOOK.items()
    )
    DailyGpuUsage.objects.bulk_create(
        DailyGpuUsage(
            host=host,
            owner=name,
            from_at=today,
            job_s=0.6 * part * gpus * seconds,
            outside_s=0.1 * part * gpus * seconds,
        )
        for name, part in TOOK.items()
    )


DAY = timedelta(days=1)


def seed_windows(
    users: Mapping[str, User], uuids: Sequence[str], admin: str, now: datetime, zone: str
) -> None:
    """None of them affects jobs of the next hours; one was in the last 24 hours."""
    today = now.astimezone(ZoneInfo(zone)).weekday()
    begin = (now - timedelta(hours=9)).astimezone(ZoneInfo(zone))
    evaluation = TimeWindow(
        user=users["dana"],
        days=[begin.weekday()],
        start=time(begin.hour),
        end=time((begin.hour + 5) % 24),
        zone=zone,
        gpu_uuids=list(uuids[-1:]),
        reason="The weekly evaluation of all models, which needs a GPU of its own.",
    )
    nights = TimeWindow(
        user=users["alice"],
        days=sorted((today + n) % 7 for n in (2, 3, 4)),
        start=time(20),
        end=time(6),
        zone=zone,
        gpu_uuids=list(uuids[-2:]),
        reason="Nightly training of the vision models, until the paper is out.",
    )
    course = TimeWindow(
        user=users["dana"],
        days=[(today + 3) % 7],
        start=time(14),
        end=time(16),
        zone=zone,
        gpu_uuids=list(uuids[:1]),
        share_pct=50,
        reason="The students' exercises: they need half of a GPU for two hours.",
    )
    for name, wish, answer in (
        ("alice", nights, "Fine. Tell me when it is out."),
        ("dana", evaluation, ""),
    ):
        window = window_rows.ask(wish, users[name], now - 9 * DAY)
        window_rows.decide(window.pk, TimeWindow.State.APPROVED, admin, now - 8 * DAY, answer)
    window_rows.ask(course, users["dana"], now - timedelta(minutes=40))


# The demo's model services, their use of the last weeks, and their users of today.
#
# One model stays loaded. The other one shares a GPU, which a backlog of scripts takes now and then:
# the model is evicted, prompts wait for it, and it is loaded again after the scripts.


STAYS, LEAVES = "qwen2.5:14b", "qwen2.5:7b"
WEEKS = 4
# GPUs of the first eight where the scenario leaves room for a model beside other processes.
GPU_OF = {STAYS: 1, LEAVES: 6}
TEXTS = (
    (PromptType.PARSE, "Find all dates and amounts in this invoice: ..."),
    (PromptType.TRANSFORM, "Translate the abstract into plain English: ..."),
    (PromptType.GENERATE, "Write a title for a paper about sparse attention."),
    (PromptType.DECIDE, "Is this review positive, negative or neutral? ..."),
    (PromptType.EXECUTE, "Sort these measurements by their standard deviation: ..."),
)
# The backlog is more jobs than the rule of the policy `eviction` lets wait. One fits on the GPU of
# the model at a time, and none beside the model.
BACKLOG, SCRIPT_GIB, SCRIPT_S = 7, 16, 6
# A visitor sees the model at work first, and the eviction soon. It is repeated for later ones.
FIRST_BACKLOG_AFTER, BACKLOG_EVERY = timedelta(seconds=25), timedelta(minutes=5)
MOST_WAITING = 20


class DemoModel(Struct, frozen=True):
    name: str
    gib: int
    boot_s: int
    requests_per_hour: int


MODELS = (DemoModel(STAYS, 14, 9, 60), DemoModel(LEAVES, 18, 6, 140))


def seed_models(users: Mapping[str, User], uuids: Sequence[str], home: Path, now: datetime) -> None:
    """Two services with their history. They boot when the demo starts."""
    is_large = len(uuids) > max(GPU_OF.values())
    for model in MODELS:
        is_brain = is_large and model.name == STAYS
        service = ModelService.objects.create(
            name=model.name,
            argv=["python3", str(home / "serve.py"), "--model", "{model}", "--port", "{port}",
                  "--boot-s", str(model.boot_s)],
            memory_mib=model.gib * 1024,
            on_gpus=[uuids[GPU_OF[model.name]]] if is_large else [],
            min_instances=1,
            max_instances=1,
            keep_alive_s=None,
            min_residency_s=15,
            role=(Role.BRAIN_PRIMARY if is_brain else Role.WORKER_OR_SCRIPT).value,
            prediction=PredictionMode.SUGGEST.value,
            created_by="admin",
        )  # fmt: skip
        _seed_model_use(service, model, sorted(users), now)
    for owner in ("alice", "bob"):
        for number, (kind, text) in enumerate(TEXTS[:3]):
            _seed_answer(users[owner], kind, text, now - timedelta(minutes=9 + 7 * number))


def _seed_model_use(
    service: ModelService, model: DemoModel, names: Sequence[str], now: datetime
) -> None:
    dice = Random(model.name)
    ModelBoot.objects.create(
        service=service, gpu_model=NAME, boot_s=model.boot_s + 0.4, boots=31,
        peak_memory_bytes=round(0.8 * model.gib * GIB), measured_at=now - timedelta(hours=3),
    )  # fmt: skip
    hour = now.replace(minute=0, second=0, microsecond=0)
    day = [hour - timedelta(hours=n) for n in range(1, 25)]
    # The same hours of earlier weeks, from which the demand is predicted.
    weeks = [hour + timedelta(hours=n) - timedelta(weeks=w) for w in range(1, WEEKS + 1)
             for n in (0, 1)]  # fmt: skip
    counts = {at: round(model.requests_per_hour * dice.uniform(0.6, 1.3)) for at in day + weeks}
    ModelHour.objects.bulk_create(
        ModelHour(service=service, at=at, requests=count) for at, count in counts.items()
    )
    ModelUse.objects.bulk_create(
        _use(model.name, name, at, counts[at] // 3, dice)
        for at in day
        for name in dice.sample(names, 3)
    )


def _use(model: str, owner: str, at: datetime, requests: int, dice: Random) -> ModelUse:
    return ModelUse(
        hour_at=at,
        model=model,
        owner=owner,
        requests=requests,
        cold=dice.choice((0, 0, 1)),
        prompt_tokens=requests * dice.randrange(90, 400),
        completion_tokens=requests * dice.randrange(60, 300),
        waited_s=requests * dice.uniform(0.01, 0.4),
        first_token_s=requests * dice.uniform(0.2, 0.7),
        answer_s=requests * dice.uniform(1.5, 5),
    )


def _seed_answer(owner: User, kind: PromptType, text: str, at: datetime) -> None:
    Prompt.objects.create(
        owner=owner, model=LEAVES, type=kind.value, priority=3, attempt=1,
        messages=[{"role": "user", "content": text}], status=PromptStatus.COMPLETE.value,
        created_at=at, assigned_at=at, started_at=at,
        first_token_at=at + timedelta(seconds=0.3), finished_at=at + timedelta(seconds=2.1),
        result="This answer is simulated: nothing was computed.",
        prompt_tokens=len(text) // 4, completion_tokens=7,
    )  # fmt: skip


def send_prompt(users: Sequence[User], dice: Random, now: datetime) -> Prompt | None:
    """A prompt of one of the users; None: enough prompts wait."""
    if Prompt.objects.filter(status=PromptStatus.QUEUED.value).count() >= MOST_WAITING:
        return None
    kind, text = dice.choice(TEXTS)
    new = NewPrompt(
        model=dice.choice((STAYS, LEAVES, LEAVES)),
        messages=({"role": "user", "content": text},),
        type=kind,
        priority=dice.choice((2, 3, 3, 3, 4)),
    )
    return prompts.send(new, dice.choice(users), now)


def is_backlog_due(last_at: datetime | None, now: datetime) -> bool:
    """Whether the model that leaves has worked for long enough, and scripts may come again."""
    if last_at is not None and now - last_at < BACKLOG_EVERY:
        return False
    ready = ModelInstance.objects.filter(
        service__name=LEAVES,
        state=InstanceState.READY.value,
        ready_at__lte=now - FIRST_BACKLOG_AFTER,
    )
    return ready.exists()


def submit_backlog(owner: User, home: Path, now: datetime) -> list[Job]:
    """Scripts that need the GPU of the model that leaves; [] while it is not loaded."""
    ready = ModelInstance.objects.filter(service__name=LEAVES, state=InstanceState.READY.value)
    uuids = ready.values_list("gpu_uuids", flat=True).first()
    if not uuids:
        return []
    return [
        job_queue.submit(
            NewJob(
                argv=("python3", "transcribe.py", "--seconds", str(SCRIPT_S)),
                name=f"subtitles {number}",
                cwd=str(home),
                priority=5,
                requirement=Requirement(memory_bytes=SCRIPT_GIB * GIB, gpu_uuid=uuids[0]),
                estimate=timedelta(seconds=SCRIPT_S),
                time_limit=timedelta(minutes=2),
            ),
            owner,
            now,
        )
        for number in range(1, BACKLOG + 1)
    ]
