"""Rows: recurring patterns of use outside of jobs, found every hour from the hourly history."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.models import Sum

from monitor.incidents.policy.patterns import (
    LOOK_BACK,
    PatternPolicy,
    Place,
    UsagePattern,
    WatchedTime,
    in_order,
    of_user,
    sentence,
)
from monitor.incidents.wording import gpu_names
from monitor.models import Gpu, HostHour, Pattern, ProcessHour
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds

HOUR_S = 3600
# An hour with less watched time is left out.
WATCHED_S = HOUR_S * 0.75


def stored() -> list[Pattern]:
    """The stored patterns, most certain first."""
    return list(Pattern.objects.select_related("gpu").order_by("id"))


def of_person(name: str) -> list[Pattern]:
    return list(Pattern.objects.select_related("gpu").filter(user=name).order_by("id"))


def replace_all(zone: ZoneInfo, now: datetime) -> int:
    """Find the patterns of all hosts again and replace the stored ones; returns their number."""
    policy = thresholds.current(PatternPolicy)
    hosts = list(Gpu.objects.order_by().values_list("host", flat=True).distinct())
    Pattern.objects.exclude(host__in=hosts).delete()
    isolation = ItemIsolation("", "patterns", longest_retry=timedelta(0))
    counts = isolation.each(
        hosts,
        lambda host: f"patterns of {host}",
        lambda host: _replace_of_host(host, zone, now, policy, isolation),
        now,
    )
    return sum(count for _, count in counts)


def _replace_of_host(
    host: str, zone: ZoneInfo, now: datetime, policy: PatternPolicy, isolation: ItemIsolation
) -> int:
    """Replace the patterns of one host. A user who fails has none; the others are stored."""
    new_patterns: list[UsagePattern] = []
    if policy.enabled:
        used, watched = _history(host, now)
        time = WatchedTime.of(watched, zone, now)
        by_user = isolation.convert(
            list(used),
            lambda user: f"use by {user}",
            lambda user: of_user(user, used[user], time),
            now,
        )
        new_patterns = in_order(pattern for _, patterns in by_user for pattern in patterns)
    rows = isolation.convert(
        new_patterns,
        lambda pattern: f"pattern of {pattern.user} on {pattern.gpu_uuids[0]}",
        lambda pattern: _row(pattern, host, zone, now),
        now,
    )
    with transaction.atomic():
        Pattern.objects.filter(host=host).delete()
        Pattern.objects.bulk_create(row for _, row in rows)
    return len(rows)


def _history(host: str, now: datetime) -> tuple[dict[str, dict[int, dict[Place, float]]], set[int]]:
    """Use in percent by user, full hour and place, and the hours that were watched."""
    begin = int((now - LOOK_BACK).timestamp())
    end = int(now.timestamp()) // HOUR_S * HOUR_S
    watched = HostHour.objects.filter(host=host, t__gte=begin, t__lt=end, seen_s__gte=WATCHED_S)
    hours = ProcessHour.objects.filter(
        use__host=host, use__job_ref="", t__gte=begin, t__lt=end, sm_s__gt=0
    ).exclude(use__user="")
    rows = hours.values_list("use__gpu_id", "use__user", "use__program", "t").order_by()
    used: dict[str, dict[int, dict[Place, float]]] = {}
    for gpu, user, program, t, sm_s in rows.annotate(used=Sum("sm_s")):
        used.setdefault(user, {}).setdefault(t, {})[Place(gpu, program)] = 100 * sm_s / HOUR_S
    return used, set(watched.values_list("t", flat=True))


def _row(pattern: UsagePattern, host: str, zone: ZoneInfo, now: datetime) -> Pattern:
    """Its GPU and program are the most used ones; the text names the others."""
    gpus = Gpu.objects.in_bulk(pattern.gpu_uuids)
    return Pattern(
        host=host,
        gpu=gpus[pattern.gpu_uuids[0]],
        user=pattern.user,
        program=pattern.programs[0],
        days="".join(map(str, pattern.days)),
        start_minute=60 * pattern.start,
        end_minute=60 * pattern.end,
        zone=str(zone),
        hits=pattern.hits,
        chances=pattern.chances,
        mean_pct=pattern.mean_pct,
        text=sentence(pattern, gpu_names(sorted(gpu.index for gpu in gpus.values()))),
        found_at=now,
    )
