"""Page of capacity planning, and its metrics: what each GPU can still take, what jobs demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from threading import Lock
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import Count, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods
from msgspec import Struct

from monitor.facts.formats import GIB, sig3
from monitor.pages.metrics import Families
from monitor.runtime.rows.database import compiled_once
from monitor.thresholds import rows as thresholds
from monitor.usage import charts
from reports import tasks
from reports.capacity import rows, step
from reports.capacity.policy.demand import LEAST_DAYS, requested
from reports.capacity.policy.replay import MOST_OFF, deviation
from reports.figures.policy.advice import ReportPolicy
from scheduler.dispatch.inputs import PlanInputs, plan_policy
from scheduler.facts.jobs import JobState, Requirement
from scheduler.facts.plans import Slot, Slots
from scheduler.jobs.rows.durations import REQUIREMENT_COLUMNS, requirement
from scheduler.limits.quotas.policy.quotas import count
from scheduler.models import Job

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
METRICS = {"utilisation": "Utilisation, %", "memory": "Memory, GiB", "queue": "Waiting, GPUs"}
LEVELS = 5
WEEK_H = 7 * 24


class Cell(Struct, frozen=True):
    """One hour of the week. level: 0 to 5, "unknown" without enough hours."""

    level: str
    text: str
    title: str


class RankLine(Struct, frozen=True):
    """Percentiles of one row of a table, as text."""

    label: str
    count: int
    p50: str
    p90: str
    p95: str


class ForecastChart(Struct, frozen=True):
    """SVG geometry in plot units, 1000 × 100; ticks: (percent of the width, label)."""

    history: str
    line: str
    band: str
    supply_y: float
    y_ticks: tuple[charts.Tick, ...]
    ticks: tuple[tuple[float, str], ...]


@require_http_methods(["GET", "HEAD", "POST"])
def capacity(request: HttpRequest) -> HttpResponse:
    """How much is used, when demand exceeds the supply, and effects of other GPUs."""
    if request.method == "POST":
        return _compute(request)
    host = request.GET.get("host") or settings.CONFIG.node
    hosts = rows.hosts()
    if host != settings.CONFIG.node and host not in hosts:
        raise Http404
    row = rows.newest(host)
    body = row.body if row is not None and step.is_enabled() else {}
    context: dict[str, Any] = {
        "enabled": step.is_enabled(),
        "host": host,
        "hosts": hosts if len(hosts) > 1 else [],
        "row": row,
        "body": body,
        "least_days": LEAST_DAYS,
    }
    if body:
        metric = request.GET.get("metric", "")
        metric = metric if metric in METRICS else "utilisation"
        context |= _content(body, metric, request.GET.get("gpu", ""))
    return render(request, "reports/capacity.html", context)


def _compute(request: HttpRequest) -> HttpResponse:
    if not request.user.is_staff:
        raise PermissionDenied
    if step.is_enabled():
        tasks.request_capacity(timezone.now())
        messages.success(request, "The capacity figures are being computed.")
    return redirect("capacity")


def _content(body: Mapping[str, Any], metric: str, chosen: str) -> dict[str, Any]:
    gpus = body["gpus"]
    gpu = next((entry for entry in gpus if str(entry["index"]) == chosen), None)
    zone = _week_zone(timezone.now())
    profile = _profile(body, gpu, metric)
    scale = GIB if metric == "memory" else 1
    top = 100.0 if metric == "utilisation" else _top(profile, scale)
    idle_kwh = [entry["idle_kwh"] for entry in gpus]
    total = sum(idle_kwh) if idle_kwh and None not in idle_kwh else None
    return {
        "metric": metric,
        "metrics": METRICS,
        "gpu": gpu,
        "weeks": _weeks(profile["by_hour_of_week"], scale, top, zone),
        "week_zone": zone,
        "top": sig3(top),
        "months": [_line(each["month"], each, scale) for each in profile["by_month"]],
        "gpu_lines": [
            {
                "gpu": entry,
                "utilisation": _line("", entry["utilisation_pct"]["whole"], 1),
                "memory": _line("", entry["memory_used_bytes"]["whole"], GIB),
            }
            for entry in gpus
        ],
        "idle_hours": sum(entry["idle_hours"] for entry in gpus),
        "known_hours": sum(entry["known_hours"] for entry in gpus),
        "idle_kwh": total,
        "idle_cost": None if total is None else _cost(total),
        "chart": _chart(body),
        "verdict": _verdict(body),
        "options": _options(body["replay"]),
        "no_advice": _no_advice(body["replay"]),
        "computed_at": _moment(body["at"]),
        "replay_since": _moment(body["replay"]["since"]) if body["replay"] else None,
    }


def _cost(kwh: float) -> str | None:
    """None while no price is set."""
    policy = thresholds.current(ReportPolicy)
    return f"{kwh * policy.price_per_kwh:.2f} {policy.currency}" if policy.price_per_kwh else None


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _profile(body: Mapping[str, Any], gpu: Mapping[str, Any] | None, metric: str) -> Any:
    if metric == "queue":
        return body["queue_gpus"]
    key = "memory_used_bytes" if metric == "memory" else "utilisation_pct"
    return (gpu or body["all_gpus"])[key]


def _top(profile: Mapping[str, Any], scale: float) -> float:
    medians = [each["p50"] for each in profile["by_hour_of_week"] if each["p50"] is not None]
    return charts.nice_ceiling(max(medians, default=0.0) / scale)


class WeekZone(Struct, frozen=True):
    """The zone of the hours of a week. shift_h: its hours ahead of the server's zone."""

    name: str
    shift_h: int
    offset: timedelta
    is_viewers: bool


def _week_zone(now: datetime) -> WeekZone:
    """The viewer's zone; the server's if the two differ by a part of an hour."""
    server = now.astimezone(ZoneInfo(settings.TIME_ZONE)).utcoffset() or timedelta()
    viewer = timezone.localtime(now).utcoffset() or timedelta()
    hours, rest = divmod(viewer - server, timedelta(hours=1))
    if rest:
        return WeekZone(settings.TIME_ZONE, 0, server, False)
    return WeekZone(timezone.get_current_timezone_name(), hours, viewer, True)


def _weeks(
    ranks: Sequence[Mapping[str, Any]], scale: float, top: float, zone: WeekZone
) -> list[tuple[str, Any]]:
    """(day, its 24 cells), Monday first."""

    def cell(number: int) -> Cell:
        at = timedelta(hours=number)
        when = f"{_hour(at)} ({_hour(at - zone.offset)} UTC)"
        return _cell(when, ranks[(number - zone.shift_h) % WEEK_H], scale, top)

    return [(d, [cell(24 * number + hour) for hour in range(24)]) for number, d in enumerate(DAYS)]


def _hour(at: timedelta) -> str:
    """A time of the week, counted from Monday 00:00: "Mon 14:00"."""
    minutes = at // timedelta(minutes=1) % (60 * WEEK_H)
    return f"{DAYS[minutes // 1440]} {minutes // 60 % 24:02d}:{minutes % 60:02d}"


def _cell(when: str, ranks: Mapping[str, Any], scale: float, top: float) -> Cell:
    line, p50 = _line("", ranks, scale), ranks["p50"]
    if p50 is None:
        return Cell("unknown", "–", f"{when}: unknown, {line.count} recorded hours")
    part = p50 / scale / top if top else 0.0
    level = 0 if part < 0.01 else min(LEVELS, 1 + int(part * LEVELS))
    title = f"{when}: p50 {line.p50}, p90 {line.p90}, p95 {line.p95}; {line.count} recorded hours"
    return Cell(str(level), line.p50, title)


def _line(label: str, ranks: Mapping[str, Any], scale: float) -> RankLine:
    def text(name: str) -> str:
        return sig3(None if ranks[name] is None else ranks[name] / scale)

    return RankLine(label, ranks["count"], text("p50"), text("p90"), text("p95"))


def _verdict(body: Mapping[str, Any]) -> tuple[str, str]:
    """(shape of the badge, sentence)."""
    forecast, supply = body["forecast"], count(body["demand"]["supply_gpus"], "GPU")
    if forecast is None:
        days = len(body["demand"]["days"])
        return "unknown", f"Forecast unknown: {days} of {LEAST_DAYS} complete days are recorded"
    day = forecast["exceeds"]
    if day is None:
        early = forecast["exceeds_earliest"]
        late = f"; at the earliest on {_day(early)}" if early else ""
        return "ok", f"Mean demand stays below {supply} until {_day(forecast['horizon'])}{late}"
    if day == forecast["points"][0]["day"]:
        return "warning", f"Mean demand exceeds {supply} now"
    latest = (
        _day(forecast["exceeds_latest"])
        if forecast["exceeds_latest"]
        else "later than the forecast"
    )
    text = f"Mean demand exceeds {supply} from ~{_day(day)}"
    return "warning", f"{text} (80 %: {_day(forecast['exceeds_earliest'])} to {latest})"


def _no_advice(replay: Mapping[str, Any] | None) -> str:
    """Why the effects of other GPUs are not shown; "" = they are."""
    if not replay or not replay["recorded"] or not replay["replayed"]:
        return ""
    waited, again = (replay[name]["waited_gpu_hours"] for name in ("recorded", "replayed"))
    if deviation(waited, again) <= MOST_OFF:
        return ""
    return (
        f"No advice: replayed on the unchanged machine, these jobs wait {sig3(again)} GPU-h, but"
        f" they waited {sig3(waited)} GPU-h. A replay that is off by more than"
        f" {MOST_OFF:.0%} cannot say what other GPUs would change."
    )


def _options(replay: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The alternatives; those with equal results are one line."""
    options: dict[str, dict[str, Any]] = {}
    for option in replay["alternatives"] if replay else ():
        is_replayed = option["figures"] is not None
        results = [option[name] for name in ("figures", "slowest", "starts_now")]
        key = repr(results) if is_replayed else option["title"]
        if key in options:
            options[key]["title"] += f" · {option['title']}"
        else:
            options[key] = dict(option)
    return list(options.values())


def _day(text: str) -> str:
    day = date.fromisoformat(text)
    return f"{day.day} {day:%b %Y}"


def _chart(body: Mapping[str, Any]) -> ForecastChart | None:
    """Past days and the forecast in one picture; None without a forecast."""
    forecast, days = body["forecast"], body["demand"]["days"]
    if forecast is None:
        return None
    past = [(_number(each["day"]), each["gpus"]) for each in days]
    ahead = [
        (_number(each["day"]), each["low"], each["middle"], each["high"])
        for each in forecast["points"]
    ]
    since, until = past[0][0], ahead[-1][0]
    highest = max([forecast["supply_gpus"], *(y for _, y in past), *(row[3] for row in ahead)])
    # Room for the label of the supply.
    top = charts.nice_ceiling(1.1 * highest)

    def place(x: int, y: float) -> tuple[float, float]:
        return 1000 * (x - since) / (until - since), 100 - 100 * y / top

    edge = [place(x, high) for x, _, _, high in ahead]
    edge += [place(x, low) for x, low, _, _ in reversed(ahead)]
    plot = charts.plot([(float(x), y) for x, y in past], since, until, top, 1)
    return ForecastChart(
        history=plot.line,
        line=charts.path([place(x, middle) for x, _, middle, _ in ahead]),
        band=f"{charts.path(edge)}Z",
        supply_y=round(100 - 100 * forecast["supply_gpus"] / top, 1),
        y_ticks=plot.y_ticks,
        ticks=tuple(_ticks(since, until)),
    )


def _number(text: str) -> int:
    return date.fromisoformat(text).toordinal()


def _ticks(since: int, until: int) -> list[tuple[float, str]]:
    step_days = max(1, round((until - since) / 4))
    ticks = []
    for x in range(since, until + 1, step_days):
        day = date.fromordinal(x)
        ticks.append((round(100 * (x - since) / (until - since), 2), f"{day.day} {day:%b}"))
    return ticks


_lock = Lock()
_inputs: dict[str, PlanInputs] = {}


def add_metrics(into: Families, now: datetime) -> None:
    """Nothing while capacity planning is off."""
    if not step.is_enabled():
        return
    slots = _slots(now)
    for gpu in slots.gpus if slots.blocker is None else ():
        labels = {"host": gpu.host, "gpu": gpu.gpu_uuid}
        help_text = "GPU memory that new jobs may take, after peaks of processes and the margin."
        into.gauge("gpucoord_placeable_memory_bytes", help_text, labels, _placeable(gpu))
    sizes = [gpu.total_bytes for gpu in slots.gpus if gpu.total_bytes]
    gpu_bytes = sum(sizes) // len(sizes) if sizes else None
    for state, requirements in _requirements().items():
        gpus, memory = requested(requirements, gpu_bytes)
        help_text = "GPUs that jobs request; a shared job counts with its part of a GPU."
        into.gauge("gpucoord_demand_gpus", help_text, {"state": state}, gpus)
        help_text = "GPU memory that jobs request; a job that declares none takes whole GPUs."
        into.gauge("gpucoord_demand_memory_bytes", help_text, {"state": state}, memory)


def _slots(now: datetime) -> Slots:
    """The GPUs of this host as its planner sees them."""
    host = settings.CONFIG.node
    with _lock:
        if host not in _inputs:
            _inputs[host] = PlanInputs(host, plan_policy())
        return _inputs[host].gpu_slots(now)


def _placeable(gpu: Slot) -> int | None:
    is_open = gpu.healthy and not (gpu.closed or gpu.exclusive or gpu.undeclared)
    return gpu.free_bytes if is_open else 0


def _requirements() -> dict[str, list[tuple[Requirement, int]]]:
    """Each distinct request of waiting and of running jobs, and how many jobs have it."""
    requests: dict[str, list[tuple[Requirement, int]]] = {"waiting": [], "running": []}
    for state, *columns, jobs in _unfinished():
        key = "waiting" if state == JobState.QUEUED else "running"
        requests[key].append((requirement(*columns), jobs))
    return requests


@compiled_once
def _unfinished() -> QuerySet[Job, tuple[Any, ...]]:
    jobs = Job.objects.exclude(state=JobState.FINISHED.value).order_by()
    return jobs.values_list("state", *REQUIREMENT_COLUMNS).annotate(count=Count("id"))
