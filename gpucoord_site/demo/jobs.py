"""The demo's queue: jobs that run or wait, quotas, past usage and time windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from django.contrib.auth.models import User
from msgspec import Struct

from scheduler.limits.quotas.policy import charging
from scheduler.limits.time_windows import rows as window_rows
from scheduler.models import DailyGpuUsage, Quota, TimeWindow, UsageShare


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
