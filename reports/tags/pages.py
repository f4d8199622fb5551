"""GPU-hours of jobs by the values of a tag. Tags of jobs are visible to all users."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from django.db.models import F, Q
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe
from msgspec import Struct, field

from monitor.facts.input_rules import character_problem
from reports.figures.facts import Period, ReportRefused
from reports.figures.policy import periods
from reports.render import actions as rendering
from reports.render.pages import LASTS
from scheduler.models import Attempt, Job

# GPU-hours of jobs by the value of a tag, such as the project.


class TaggedAttempt(Struct, frozen=True, kw_only=True):
    """An attempt of a job with the tag. sm_s: GPU-seconds used; None = not known (yet)."""

    value: str
    owner: str
    job: int
    gpus: int
    began_at: datetime
    ended_at: datetime | None
    sm_s: float | None


class TagUse(Struct):
    """Sums of one value. used_s: of the attempts with known use, which held known_s."""

    value: str
    held_s: float = 0.0
    known_s: float = 0.0
    used_s: float = 0.0
    jobs: set[int] = field(default_factory=set)
    users: set[str] = field(default_factory=set)

    @property
    def efficiency(self) -> float | None:
        return min(1.0, self.used_s / self.known_s) if self.known_s else None

    @property
    def coverage(self) -> float | None:
        return self.known_s / self.held_s if self.held_s else None


def sums(
    attempts: Iterable[TaggedAttempt], since: datetime, until: datetime, now: datetime
) -> list[TagUse]:
    """By value, most GPU time first. Use is spread evenly over the time of an attempt."""
    by_value: dict[str, TagUse] = {}
    for attempt in attempts:
        ended = attempt.ended_at or now
        inside_s = (min(ended, until) - max(attempt.began_at, since)).total_seconds()
        if inside_s <= 0 and not (since <= attempt.began_at < until):
            continue
        use = by_value.setdefault(attempt.value, TagUse(attempt.value))
        use.jobs.add(attempt.job)
        use.users.add(attempt.owner)
        held_s = attempt.gpus * max(0.0, inside_s)
        use.held_s += held_s
        whole_s = (ended - attempt.began_at).total_seconds()
        if attempt.sm_s is not None and whole_s > 0:
            use.known_s += held_s
            use.used_s += attempt.sm_s * max(0.0, inside_s) / whole_s
    return sorted(by_value.values(), key=lambda use: (-use.held_s, use.value))


LONGEST_NAME, LONGEST_USER = 40, 150
MOST_VALUES = 1000
CSV_COLUMNS = (
    "value",
    "jobs",
    "users",
    "gpu_hours_held",
    "gpu_hours_used",
    "efficiency",
    "coverage",
)


def report(tag: str, period: Period, user: str, now: datetime) -> dict[str, Any]:
    """The answer of GET /api/reports/tags/. user: "" = all."""
    attempts = tagged_attempts(tag, period.since, period.until, user)
    uses = sums(attempts, period.since, period.until, now)
    return {
        "tag": tag,
        "from": period.since,
        "to": period.until,
        "total": len(uses),
        "values": [_value(use) for use in uses[:MOST_VALUES]],
    }


def _value(use: TagUse) -> dict[str, Any]:
    return {
        "value": use.value,
        "jobs": len(use.jobs),
        "users": len(use.users),
        "gpu_hours_held": use.held_s / 3600,
        "gpu_hours_used": use.used_s / 3600 if use.known_s else None,
        "efficiency": use.efficiency,
        "coverage": use.coverage,
    }


def as_csv(answer: dict[str, Any]) -> bytes:
    """The values of a report; the column of the tag has the heading "value"."""
    return rendering.table(CSV_COLUMNS, answer["values"])


# The attempts of jobs that have a tag.

PIECE = 2000
# Names of tags are those of so many newest jobs.
NEWEST_JOBS, MOST_NAMES = 5000, 50


def tag_names() -> list[str]:
    """Names of tags in use, the most frequent first."""
    newest = Job.objects.order_by("-pk").values_list("tags", flat=True)[:NEWEST_JOBS]
    counts = Counter(name for tags in newest for name in tags)
    return [name for name, _ in sorted(counts.items(), key=lambda c: (-c[1], c[0]))[:MOST_NAMES]]


def tagged_attempts(
    tag: str, since: datetime, until: datetime, user: str = ""
) -> Iterator[TaggedAttempt]:
    """Those that overlap the period; of one user, or of all."""
    rows = Attempt.objects.filter(
        Q(ended_at=None) | Q(ended_at__gt=since), placed_at__lt=until, job__tags__has_key=tag
    )
    if user:
        rows = rows.filter(job__owner__username=user)
    rows = rows.annotate(
        value=KeyTextTransform(tag, "job__tags"), began_at=Coalesce("started_at", "placed_at")
    )
    columns = (
        "value", "job__owner__username", "job_id", "gpu_uuids", "began_at", "ended_at", "use__sm_s",
    )  # fmt: skip
    for value, owner, job, uuids, began_at, ended_at, sm_s in (
        rows.order_by(F("pk")).values_list(*columns).iterator(PIECE)
    ):
        yield TaggedAttempt(
            value=value or "",
            owner=owner,
            job=job,
            gpus=len(uuids),
            began_at=began_at,
            ended_at=ended_at,
            sm_s=sm_s,
        )


OF_ALL, OF_ME = "", "me"
USUAL = "30d"


@require_safe
def by_tag(request: HttpRequest) -> HttpResponse:
    """Shows a report, and the choice of tag, period and users. A wrong choice shows its reason."""
    query, now = request.GET, timezone.now()
    names = tag_names()
    tag = query.get("tag") or (names[0] if names else "")
    last, user = query.get("last") or USUAL, query.get("user", OF_ALL)
    context: dict[str, Any] = {
        "tag": tag, "names": names, "lasts": LASTS, "last": last, "user_choice": user,
    }  # fmt: skip
    problem = _problem(tag, user)
    if not problem and tag:
        zone = timezone.get_current_timezone_name()
        try:
            period = periods.parse(last, "", "", zone, now)
        except ReportRefused as refused:
            problem = str(refused)
        else:
            name = request.user.get_username() if user == OF_ME else ""
            context["report"] = report(tag, period, name, now)
            context["rows"] = [
                value
                | {"used_pct": _pct(value["efficiency"]), "known_pct": _pct(value["coverage"])}
                for value in context["report"]["values"]
            ]
    status = 422 if problem else 200
    return render(request, "reports/tags.html", context | {"problem": problem}, status=status)


def _problem(tag: str, user: str) -> str:
    if len(tag) > LONGEST_NAME or character_problem(tag):
        return f"A tag has a name of at most {LONGEST_NAME} printable characters."
    return "" if user in (OF_ALL, OF_ME) else "Choose all users or your own jobs."


def _pct(part: float | None) -> float | None:
    return None if part is None else 100 * part
