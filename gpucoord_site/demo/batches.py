"""The demo's batch in exclusive mode, and its idle work."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

from django.contrib.auth.models import User

from monitor.gpus.snapshot import rows as snapshots
from scheduler.facts.jobs import Outcome
from scheduler.models import IdleChoice, IdleTemplate, Job
from scheduler.submission.batches import rows as batch_rows
from scheduler.submission.idle_work import rows
from scheduler.submission.idle_work.policy import candidates

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
    _seed_choices(now)


def _seed_choices(now: datetime) -> None:
    """Some jobs of the past two hours came from the templates."""
    templates = list(IdleTemplate.objects.select_related("account").order_by("name"))
    for_gpus = [row for row in templates if rows.gpus_of(row.request)]
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
                candidates=rows.candidates_row(candidates(rows.facts(for_gpus, at), at)),
            )
            Job.objects.filter(pk=job.pk).update(idle_template=row.name, priority=1)
