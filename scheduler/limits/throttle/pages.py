"""Limits on starting jobs, the same for all viewers; the dashboard shows the urgent ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods
from msgspec import Struct

from monitor.incidents import rows as open_incidents
from monitor.incidents.policy.constraints import EFFECTS, ConstraintEffect
from monitor.incidents.policy.usage_series import union_s
from monitor.journal.rows import events
from monitor.models import Constraint, Gpu
from monitor.pages.frames import Context, Region
from monitor.runtime.rows.database import compiled_once
from monitor.thresholds import rows as thresholds
from scheduler.disk import steps
from scheduler.disk.policy import DiskLevel, DiskPolicy, is_near, sentence
from scheduler.facts.jobs import PriorityClass
from scheduler.facts.plans import Throttle
from scheduler.jobs.rows import durations
from scheduler.limits.throttle import step as throttle_rows
from scheduler.limits.throttle.policy import throttle
from scheduler.limits.throttle.policy.pressure import CLASSES, Deferral
from scheduler.limits.throttle.policy.throttle import (
    HOG_MULTIPLIER,
    LEAST_MULTIPLIER,
    LOOK_BACK_H,
    AdaptivePolicy,
    LoadTier,
    Mode,
    ModePolicy,
    ThrottleMemory,
)
from scheduler.models import ModeState, Quota

# The page of the mode: overuse by hour, and the multiplier by other users' load.


HOUR_S = 3600
# The plot inside its SVG.
WIDE, HIGH = 480, 72
Spans = Sequence[tuple[float, float]]


class OveruseHour(Struct, frozen=True):
    """begin: epoch seconds. pct: part of the hour with overuse. x, y, width, height: its bar."""

    begin: float
    pct: float
    x: float
    y: float
    width: float
    height: float


def overuse_hours(spans: Spans, hours: int, now: datetime) -> list[OveruseHour]:
    """The last hours, oldest first; `spans`: begin and end of times with overuse."""
    end = now.timestamp()
    width = WIDE / hours
    made = []
    for number in range(hours):
        begin = end - (hours - number) * HOUR_S
        part = union_s([(max(a, begin), min(b, begin + HOUR_S)) for a, b in spans]) / HOUR_S
        tall = round(HIGH * part, 1)
        x = round(number * width, 1)
        made.append(
            OveruseHour(begin, 100 * part, x, round(HIGH - tall, 1), round(width - 2, 1), tall)
        )
    return made


def tiers(policy: AdaptivePolicy) -> list[tuple[str, float]]:
    """Each range of other users' load in words, with the multiplier there."""
    free, busy = policy.free_below_pct, policy.busy_above_pct
    words = {
        LoadTier.FREE: f"below {free:g} %",
        LoadTier.MIDDLE: f"{free:g}–{busy:g} %",
        LoadTier.BUSY: f"above {busy:g} %",
    }
    return [(text, throttle.multiplier(tier, policy)) for tier, text in words.items()]


# The page of the mode: the current mode, its reason, and the operator's override.

AUTOMATIC = "automatic"
CHOICES = [
    (AUTOMATIC, "Automatic"),
    (Mode.COOPERATIVE.value, "Cooperative"),
    (Mode.DEFENSIVE.value, "Defensive"),
]
HOURS = [(1, "1 h"), (4, "4 h"), (12, "12 h"), (24, "1 day"), (168, "7 days")]


class ModeForm(forms.Form):
    """`hours` applies to modes other than automatic."""

    host = forms.CharField(required=False, max_length=100, widget=forms.HiddenInput)
    mode = forms.ChoiceField(choices=CHOICES, label="Mode")
    hours = forms.TypedChoiceField(
        choices=HOURS, coerce=int, initial=4, label="For", required=False, empty_value="4"
    )

    def clean_host(self) -> str:
        host: str = self.cleaned_data["host"]
        if host and not ModeState.objects.filter(host=host).exists():
            raise forms.ValidationError("This host does not exist.")
        return host

    def chosen(self) -> Mode | None:
        mode = self.cleaned_data["mode"]
        return None if mode == AUTOMATIC else Mode(mode)

    def until(self, now: datetime) -> datetime | None:
        if self.chosen() is None:
            return None
        return now + timedelta(hours=int(self.cleaned_data["hours"]))


SHOWN = 10


@require_http_methods(["GET", "HEAD", "POST"])
def mode(request: HttpRequest) -> HttpResponse:
    form = ModeForm(request.POST or None)
    if request.method == "POST":
        if not request.user.is_staff:
            raise PermissionDenied
        if form.is_valid():
            chosen, host = form.chosen(), form.cleaned_data["host"] or settings.CONFIG.node
            now = timezone.now()
            by = request.user.get_username()
            throttle_rows.override(host, chosen, form.until(now), by=by, now=now)
            messages.success(request, f"{host}: the mode is {chosen or 'automatic'}.")
            return redirect("mode")
    policy, adaptive = thresholds.current(ModePolicy), thresholds.current(AdaptivePolicy)
    now = timezone.now()
    modes = throttle_rows.shown_modes(settings.CONFIG.node)
    context = {
        "form": form,
        "rows": [(row, _overuse(row.host, now)) for row in modes],
        "policy": policy,
        "look_back_h": LOOK_BACK_H,
        "multipliers": {"hog": HOG_MULTIPLIER, "least": LEAST_MULTIPLIER},
        "tiers": tiers(adaptive),
        "changes": events.recent(SHOWN, kind="MODE_CHANGED"),
        **load(now),
    }
    return render(request, "scheduler/mode.html", context, status=422 if form.errors else 200)


def _overuse(host: str, now: datetime) -> dict[str, Any]:
    """Overuse in the look-back time: the part of it in percent, and by hour."""
    spans = open_incidents.hog_spans(host, LOOK_BACK_H, now)
    return {
        "pct": 100 * union_s(spans) / (LOOK_BACK_H * 3600),
        "hours": overuse_hours(spans, LOOK_BACK_H, now),
        "since": now - timedelta(hours=LOOK_BACK_H),
    }


# The example share in texts, if no default share is set.
EXAMPLE_PCT = 30.0
# More busy GPUs than this are counted instead of listed.
MOST_NAMED = 8
SHAPES = {
    ConstraintEffect.HARD: "failing",
    ConstraintEffect.SOFT: "warning",
    ConstraintEffect.NONE: "unknown",
}


URGENT = ("failing", "warning")


class PressureLine(Struct, frozen=True):
    """A limit on starting jobs: its shape, name, effect and start."""

    shape: str
    text: str
    effect: str = ""
    since: datetime | None = None
    until: datetime | None = None


class HostPressure(Struct, frozen=True):
    """`quotas`: how quotas are reduced now, in words; "" when they are not."""

    host: str
    lines: tuple[PressureLine, ...]
    quotas: str


def load(now: datetime) -> Context:
    open_rows = open_incidents.open_constraints()
    hosts = []
    for host, at, allowed, memory in throttle_rows.shown():
        constraints = [_constraint(row) for row in open_rows if row.host == host]
        limits = _lines(allowed, memory) if now - at <= throttle_rows.STALE_AFTER else []
        lines = [*constraints, *_disks(host, now), *limits]
        hosts.append(HostPressure(host, tuple(lines), _quotas(allowed)))
    waits = durations.jobs_wait()
    return {"hosts": tuple(hosts), "several": len(hosts) > 1, "waits": waits}


def load_urgent(now: datetime) -> Context:
    """The limits that need a person. Deferrals and busy GPUs pass by themselves."""
    lines = [
        (host.host, line)
        for host in load(now)["hosts"]
        for line in host.lines
        if line.shape in URGENT
    ]
    return {"lines": lines, "several": len({host for host, _ in lines}) > 1}


def _constraint(row: Constraint) -> PressureLine:
    effect = EFFECTS.get(row.kind, ConstraintEffect.NONE)
    consequences = {
        ConstraintEffect.HARD: "no jobs start",
        ConstraintEffect.SOFT: "normal and background jobs wait",
    }
    return PressureLine(SHAPES[effect], row.text, consequences.get(effect, ""), row.from_at)


def _disks(host: str, now: datetime) -> Iterable[PressureLine]:
    """File systems for whose space jobs wait, or soon will."""
    policy = thresholds.current(DiskPolicy)
    for row in steps.watched_disks(host):
        space = steps.space_of(row)
        if space is None or now - row.at > steps.STALE_AFTER:
            continue
        if row.level == DiskLevel.BLOCKED.value:
            text = sentence(row.path, space, DiskLevel.BLOCKED, policy)
            yield PressureLine("failing", text, "jobs wait", row.since_at)
        elif is_near(space, policy):
            text = sentence(row.path, space, DiskLevel.NORMAL, policy)
            yield PressureLine("warning", text, "jobs will soon wait", row.since_at)


def _lines(allowed: Throttle, memory: ThrottleMemory) -> Iterable[PressureLine]:
    yield from _deferred(memory)
    yield from _busy(allowed)
    if allowed.starts is not None:
        jobs = "1 more job" if allowed.starts == 1 else f"{allowed.starts} more jobs"
        sentence = f"Up to {jobs} can start" if allowed.starts else "No more jobs can start"
        reason = (
            "close to the target utilisation" if allowed.starts else "target utilisation reached"
        )
        yield PressureLine("waiting", f"{sentence} on shared GPUs", reason)


def _deferred(memory: ThrottleMemory) -> Iterable[PressureLine]:
    """One line for all classes that are deferred for the same reason."""
    by_reason: dict[str, list[tuple[PriorityClass, Deferral]]] = {}
    for kind in CLASSES:
        deferral = memory.deferrals.get(kind)
        if deferral is not None and deferral.holds:
            why = ", ".join(signal.text for signal in deferral.strains)
            by_reason.setdefault(why, []).append((kind, deferral))
    for why, deferred in by_reason.items():
        *first, last = (kind.value for kind, _ in deferred)
        classes = f"{', '.join(first)} and {last}" if first else last
        yield PressureLine(
            "waiting",
            f"{classes.capitalize()} jobs are deferred",
            why,
            _moment(min(deferral.since_t for _, deferral in deferred)),
            _moment(max(deferral.until_t for _, deferral in deferred)),
        )


def _busy(allowed: Throttle) -> Iterable[PressureLine]:
    """Busy GPUs, grouped by the jobs that can still start there."""
    normal = frozenset(allowed.closed_gpus.get(PriorityClass.NORMAL, {}))
    background = frozenset(allowed.closed_gpus.get(PriorityClass.BACKGROUND, {})) - normal
    indices_of = {gpu.uuid: gpu.index for gpu in _gpus()} if normal or background else {}
    for uuids, effect in (
        (normal, "only priority 4–5 jobs can start there"),
        (background, "no background jobs can start there"),
    ):
        if indices := sorted(indices_of[uuid] for uuid in uuids & indices_of.keys()):
            yield PressureLine("busy", f"{_named(indices)} busy", effect)


def _named(indices: Sequence[int]) -> str:
    """`GPU 3 is`, `GPUs 1, 4 are`, `25 GPUs are`."""
    if len(indices) > MOST_NAMED:
        return f"{len(indices)} GPUs are"
    listed = ", ".join(map(str, indices))
    return f"GPUs {listed} are" if len(indices) > 1 else f"GPU {listed} is"


@compiled_once
def _gpus() -> QuerySet[Gpu]:
    return Gpu.objects.only("index")


def _quotas(allowed: Throttle) -> str:
    """The reduction of shares on the most reduced GPUs, in words. Empty: no reduction."""
    parts = [part for part in allowed.multipliers.values() if part > 0]
    if not parts or min(parts) >= 1:
        return ""
    why = f": {allowed.reason}" if allowed.reason else ""
    pct, least = _share_of_all(), min(parts)
    gpus = sum(part == least for part in parts)
    where = "all GPUs" if gpus == len(parts) else f"{gpus} of {len(parts)} GPUs"
    return (
        f"On {where}, quotas are reduced to {100 * least:.2g} %"
        f" (a share of {pct:g} % counts as {pct * least:.2g} %){why}. Empty GPUs are not affected."
    )


def _share_of_all() -> float:
    """The default share in percent; EXAMPLE_PCT if none is set."""
    shares = (row.share_pct for row in _default_quotas() if row.share_pct is not None)
    return next(shares, EXAMPLE_PCT)


@compiled_once
def _default_quotas() -> QuerySet[Quota]:
    return Quota.objects.filter(user=None, group=None)


def _moment(t: float) -> datetime:
    return datetime.fromtimestamp(t, UTC)


REGION = Region("pressure", "scheduler/_urgent_limits.html", load_urgent, place=60)


# The badge of the mode in the head of each page.


class ModeBadge(Struct, frozen=True):
    """`until`: the end of an operator's override."""

    word: str
    reason: str
    until: datetime | None = None


def badge(host: str) -> ModeBadge | None:
    """The mode of all hosts, if one host is defensive. None: cooperative, or unknown.

    A database error gives None, because error pages show the badge too.
    """
    try:
        rows = _modes()
    except DatabaseError:
        return None
    defensive = [row for row in rows if row[1] == Mode.DEFENSIVE]
    if not defensive:
        return None
    where = ", ".join(name for name, *_ in defensive if len(rows) > 1 or name != host)
    word = f"defensive ({where})" if where else "defensive"
    reasons = " ".join(reason for _, _, reason, _ in defensive)
    return ModeBadge(word, reasons, defensive[0][3])


@compiled_once
def _modes() -> QuerySet[Any, tuple[str, str, str, datetime | None]]:
    columns = ("host", "mode", "reason", "override_until")
    return ModeState.objects.order_by("host").values_list(*columns)


def _load(now: datetime) -> Context:
    return {"mode": badge(settings.CONFIG.node)}


MODE_REGION = Region("mode", "scheduler/_mode.html", _load, in_head=True)
