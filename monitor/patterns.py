"""Rows: patterns of use outside of jobs, found anew every hour from the hours that are kept."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.models import Sum

from monitor import policies
from monitor.models import Gpu, HostHour, Pattern, ProcessHour
from monitor.policy.patterns import LOOK_BACK, Found, PatternPolicy, Subject, find, sentence

HOUR_S = 3600
# An hour of which less was watched says nothing.
WATCHED_S = HOUR_S * 0.75
MOST_SHOWN = 20


def known() -> list[Pattern]:
    """What was found last, the most certain first."""
    rows = Pattern.objects.select_related("gpu").order_by("id")
    return list(rows[:MOST_SHOWN])


def of_person(name: str) -> list[Pattern]:
    return list(Pattern.objects.select_related("gpu").filter(user=name).order_by("id"))


def find_all(zone: ZoneInfo, now: datetime) -> int:
    """Look at all hosts; what is found takes the place of what was."""
    policy = policies.current(PatternPolicy)
    hosts = list(Gpu.objects.order_by().values_list("host", flat=True).distinct())
    found = [
        _row(pattern, host, zone, now)
        for host in hosts
        for pattern in find(*_history(host, now), zone, now, policy)
    ]
    with transaction.atomic():
        Pattern.objects.all().delete()
        Pattern.objects.bulk_create(found)
    return len(found)


def _history(host: str, now: datetime) -> tuple[dict[Subject, dict[int, float]], set[int]]:
    """Who used how much of which GPU in each full hour, and which hours were watched."""
    begin = int((now - LOOK_BACK).timestamp())
    end = int(now.timestamp()) // HOUR_S * HOUR_S
    watched = HostHour.objects.filter(host=host, t__gte=begin, t__lt=end, seen_s__gte=WATCHED_S)
    hours = ProcessHour.objects.filter(
        use__host=host, use__job_ref="", t__gte=begin, t__lt=end, sm_s__gt=0
    ).exclude(use__user="")
    rows = hours.values_list("use__gpu_id", "use__user", "use__program", "t").order_by()
    used: dict[Subject, dict[int, float]] = {}
    for gpu, user, program, t, sm_s in rows.annotate(used=Sum("sm_s")):
        used.setdefault(Subject(gpu, user, program), {})[t] = 100 * sm_s / HOUR_S
    return used, set(watched.values_list("t", flat=True))


def _row(found: Found, host: str, zone: ZoneInfo, now: datetime) -> Pattern:
    gpu = Gpu.objects.get(pk=found.subject.gpu_uuid)
    return Pattern(
        host=host,
        gpu=gpu,
        user=found.subject.user,
        program=found.subject.program,
        days="".join(map(str, found.days)),
        start_minute=60 * found.start,
        end_minute=60 * found.end,
        zone=str(zone),
        hits=found.hits,
        chances=found.chances,
        mean_pct=found.mean_pct,
        text=sentence(found, f"GPU {gpu.index}"),
        found_at=now,
    )
