"""Pages of incidents: the list, badges on other pages, the evidence, and the actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, models
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe
from msgspec import Struct
from msgspec.structs import replace

from monitor.facts import incidents as rules
from monitor.facts.formats import GIB, first_few
from monitor.facts.incidents import (
    HOG_RULES,
    IDLE_HELD,
    INCIDENT_ANSWERS,
    SUSTAINED,
    TITLES,
    Badge,
    Badges,
    Rank,
    headline,
    rank,
    title,
    worst_part,
)
from monitor.facts.input_rules import is_number
from monitor.incidents import actions
from monitor.incidents import rows as incident_rows
from monitor.incidents.actions import may_see_details
from monitor.incidents.alerts import steps
from monitor.incidents.alerts.policy import AlertPolicy
from monitor.incidents.alerts.steps import message_text
from monitor.incidents.policy import enforcement
from monitor.incidents.policy.findings import GpuTimePolicy
from monitor.incidents.rules.cpu import CPU_PCT
from monitor.incidents.rules.processes import HOG_PCT
from monitor.incidents.wording import ADVICE
from monitor.journal.pages import gpus
from monitor.models import Claim, Exemption, Gpu, Incident, Message, ProcessUse, Response
from monitor.owners.policy import Viewer
from monitor.pages.cards import in_gib
from monitor.pages.frames import Context, Region
from monitor.pages.requests import ListFilters, posted_text, viewer_of
from monitor.thresholds import rows as thresholds
from monitor.usage.pages import content as history_content
from monitor.usage.pages.chart_panels import ChartLine, Panel, Row, Value, highest, mean, moments
from monitor.usage.policy import ranges as usage_ranges
from monitor.usage.policy.ranges import RANGES, HistoryWindow
from monitor.usage.rows import processes as usage_sums
from monitor.usage.rows.rollups import GPUS, HOSTS

STATES = {"open": "Open", "closed": "Closed", "all": "All"}
WORST_FIRST = models.Case(
    models.When(severity="error", then=models.Value(0)),
    models.When(severity="warning", then=models.Value(1)),
    default=models.Value(2),
    output_field=models.IntegerField(),
)


class IncidentFilters(ListFilters, frozen=True):
    """Filters of the page of incidents."""

    state: str = "open"
    rule: str = ""
    person: str = ""
    gpu: str = ""
    range: str = ""

    @classmethod
    def accepted(cls, name: str, text: str) -> str | None:
        allowed = {"state": text in STATES, "rule": text in TITLES, "range": text in RANGES}
        return text if allowed.get(name, True) else None

    @property
    def states(self) -> list[tuple[str, str, bool]]:
        return [
            (self.with_(state=name), words, name == self.state) for name, words in STATES.items()
        ]

    @property
    def narrowed(self) -> bool:
        return self.is_set("rule", "person", "gpu", "range")


class IncidentRow(Struct, frozen=True):
    """An incident as one viewer sees it. `opens`: the viewer may open its page.

    worst: the part of it that is described; `facets`: the others.
    """

    incident: Incident
    worst: Incident
    title: str
    gpu: str
    facets: list[str]
    opens: bool
    is_snoozed: bool
    is_quiet: bool

    @property
    def own_title(self) -> str:
        """The rule of the incident itself, which its page is about."""
        return title(self.incident.rule, is_hog=self.incident.is_hog)

    @property
    def description(self) -> str:
        """The text without the title, which stands beside it."""
        return self.worst.text.removeprefix(f"{self.title}: ")


class IncidentTable(Struct, frozen=True):
    lines: list[IncidentRow]
    newer: str | None
    older: str | None


# Of one rule; its page lists all.
MOST_GPUS = 8
# An open incident that was not detected for this long is quiet and closes soon.
QUIET = timedelta(seconds=45)


def matching(filters: IncidentFilters, now: datetime) -> QuerySet[Incident]:
    """The matching incidents. Open incidents are sorted by severity and age."""
    rows = Incident.objects.filter(lead__isnull=True).prefetch_related("facets")
    if filters.state != "all":
        rows = rows.filter(closed_at__isnull=filters.state == "open")
    if filters.rule:
        rows = rows.filter(_some_part(rule=filters.rule))
    if filters.person:
        rows = rows.filter(incident_rows.of_person(filters.person))
    if filters.gpu:
        rows = rows.filter(_some_part(gpu_id=filters.gpu))
    if filters.range:
        since = now - timedelta(seconds=RANGES[filters.range][1])
        rows = rows.filter(last_seen_at__gte=since)
    if filters.state == "open":
        return rows.order_by(WORST_FIRST, "since_at", "id")
    return rows.order_by("-opened_at", "-id")


def _some_part(**fields: str) -> Q:
    """Matches an incident by itself or by one of its facets, once."""
    facets = Incident.objects.filter(lead__isnull=False, **fields).values("lead_id")
    return Q(**fields) | Q(pk__in=facets)


def table(filters: IncidentFilters, viewer: Viewer, now: datetime) -> IncidentTable:
    end = filters.skip + filters.PER_PAGE + 1
    page = list(matching(filters, now)[filters.skip : end])
    return IncidentTable(
        lines=lines(page[: filters.PER_PAGE], viewer, now),
        newer=filters.newer(),
        older=filters.older(len(page)),
    )


def lines(incidents: Iterable[Incident], viewer: Viewer, now: datetime) -> list[IncidentRow]:
    names = dict(gpus())
    return [_line(incident, viewer, names, now) for incident in incidents]


def _line(
    incident: Incident, viewer: Viewer, names: Mapping[str, str], now: datetime
) -> IncidentRow:
    is_open = incident.closed_at is None
    snoozed = incident.snoozed_until
    parts = incident.parts
    worst = worst_part(parts)
    return IncidentRow(
        incident,
        worst,
        title(worst.rule, is_hog=worst.is_hog),
        names.get(worst.gpu_id or "", ""),
        facets=_facets((part for part in parts if part is not worst), names),
        opens=may_see_details(incident, viewer),
        is_snoozed=is_open and snoozed is not None and snoozed > now,
        is_quiet=is_quiet(incident, now),
    )


def _facets(rows: Iterable[Incident], names: Mapping[str, str]) -> list[str]:
    """One text for each rule, such as "Memory hog on GPUs 3, 4 (over)"; open facets come first."""
    by_rule: dict[tuple[bool, str, str], list[str]] = {}
    for row in rows:
        host, _, number = names.get(row.gpu_id or "", "").rpartition("GPU ")
        key = (row.closed_at is not None, title(row.rule, is_hog=row.is_hog), host)
        by_rule.setdefault(key, []).append(number)
    return [_facet(*key, numbers) for key, numbers in sorted(by_rule.items())]


def _facet(is_over: bool, rule: str, host: str, numbers: Iterable[str]) -> str:
    gpus = sorted(filter(None, numbers), key=int)
    shown = first_few(gpus, MOST_GPUS)
    where = f" on {host}GPU{'s' if len(gpus) > 1 else ''} {shown}" if gpus else ""
    return f"{rule}{where}{' (over)' if is_over else ''}"


def is_quiet(incident: Incident, now: datetime) -> bool:
    return incident.closed_at is None and now - incident.last_seen_at > QUIET


def choices() -> dict[str, Any]:
    """The options of the filters."""
    return {
        "rules": sorted(TITLES.items(), key=lambda item: item[1]),
        "gpus": gpus(),
        "ranges": [(name, text) for name, (text, _) in RANGES.items()],
    }


def exemptions(now: datetime) -> list[tuple[Exemption, str]]:
    """The exemptions in force, each with its rule in words."""
    rows = Exemption.objects.filter(Q(until_at__isnull=True) | Q(until_at__gt=now))
    return [
        (row, TITLES.get(row.rule, "all rules") if row.rule else "all rules")
        for row in rows.order_by("scope", "name")
    ]


SHOWN = 6


def _load(now: datetime) -> Context:
    """Incidents that are not muted, sorted by severity, harm and age."""
    rows = incident_rows.not_snoozed(now)
    shown = sorted((row for row in rows if row.lead_id is None), key=worst_first)
    parts = {lead.pk: [lead] for lead in shown}
    for row in rows:
        if row.lead_id in parts:
            parts[row.lead_id].append(row)
    return {
        "lines": [(lead, headline(parts[lead.pk]), is_quiet(lead, now)) for lead in shown[:SHOWN]],
        "count": incident_rows.count(rows),
        "most": SHOWN,
        "badges": of(rows),
    }


def _version(context: Context) -> object:
    lines = [
        (lead.pk, text, lead.severity, lead.acknowledged_at, quiet)
        for lead, text, quiet in context["lines"]
    ]
    return lines, context["count"]


REGION = Region("incidents", "monitor/_incidents.html", _load, _version, place=10)


def _load_alerts(now: datetime) -> Context:
    return {"alerts": alert_count(now)}


ALERTS = Region("alerts", "monitor/_alerts.html", _load_alerts, in_head=True)


# Badges of open incidents for processes and GPUs.


def current(now: datetime) -> Badges:
    """The badges of all open incidents that are not muted."""
    return of(incident_rows.not_snoozed(now))


def alert_count(now: datetime) -> int | None:
    """All open incidents if any of them harms other users, else 0. None: no database.

    Error pages show it too, so a database error raises nothing.
    """
    try:
        badges = current(now)
    except DatabaseError:
        return None
    return badges.open if badges.harmful else 0


def of(rows: Iterable[Incident]) -> Badges:
    """The worst badge of each process and GPU. Equal badges: the most specific rule wins."""
    processes: dict[tuple[str, int], Badge] = {}
    gpus: dict[str, Badge] = {}
    all_rows = list(rows)
    current_rows = sorted((row for row in all_rows if row.over_at is None), key=_specific_last)
    badges = [badge_of(row) for row in current_rows]
    for row, badge in zip(current_rows, badges, strict=True):
        if row.gpu_id and row.pid:
            processes[row.gpu_id, row.pid] = badge
        if row.gpu_id and (row.gpu_id not in gpus or badge.rank >= gpus[row.gpu_id].rank):
            gpus[row.gpu_id] = badge
    harmful = [badge for badge in badges if badge.is_warning]
    worst = max(harmful, key=lambda badge: badge.rank, default=None)
    return Badges(
        processes,
        gpus,
        open=incident_rows.count(all_rows),
        harmful=len({badge.incident for badge in harmful}),
        worst=worst,
    )


def badge_of(row: Incident) -> Badge:
    return Badge(
        word=rules.badge(row.rule, is_hog=row.is_hog),
        severity=row.severity,
        incident=row.lead_id or row.pk,
        text=row.text,
        title=title(row.rule, is_hog=row.is_hog),
        gpu_uuid=row.gpu_id,
        idle_since=row.since_at if row.rule == IDLE_HELD else None,
        since=row.since_at,
        waited_s=row.waited_s,
    )


def _specific_last(row: Incident) -> tuple[int, int, bool, bool, Rank, int]:
    worst = rank(row.severity, row.waited_s, row.since_at)
    return *worst[:2], row.rule in HOG_RULES, row.rule == SUSTAINED, worst, -row.pk


def worst_first(row: Incident) -> tuple[int, int, datetime, int]:
    severity, harm, _ = rank(row.severity, row.waited_s, row.since_at)
    return -severity, -harm, row.since_at, row.pk


def open_of(name: str) -> list[Incident]:
    """The open incidents of a user, worst first."""
    rows = (
        incident_rows.open_incidents().filter(incident_rows.of_person(name)).select_related("gpu")
    )
    return sorted(rows, key=worst_first)


# Content of an incident's page: measurements around it, enforcement steps and mails.


# The shortest and longest time shown before the incident.
BEFORE_S = 900
MOST_BEFORE_S = 6 * 3600


def evidence(incident: Incident, query: Mapping[str, str], now: datetime) -> dict[str, Any]:
    """Template variables: charts of the incident's time, or of the range in the query."""
    chosen = _window(incident, query, now).in_minutes
    hogs = thresholds.current(GpuTimePolicy)
    rows = _rows(incident, chosen)
    seen_s = sum(row["seen_s"] for row in rows)
    covered = min(100.0, 100 * seen_s / chosen.seconds) if chosen.seconds else None
    drawn = history_content.drawn(_panels(incident, hogs), rows, chosen, now, covered)
    is_over = incident.closed_at is not None
    marks = {
        "began": incident.since_at.timestamp(),
        "ended": incident.last_seen_at.timestamp() if is_over else None,
    }
    return {
        **history_content.ranges(chosen, now, ("incident", "the incident")),
        "history": replace(drawn, moments=moments(chosen, marks)),
    }


def _window(incident: Incident, query: Mapping[str, str], now: datetime) -> HistoryWindow:
    if query.get("range", "incident") != "incident" or query.get("since"):
        return history_content.window(query, now)
    begin = int(incident.since_at.timestamp())
    end = int((incident.closed_at or now).timestamp())
    before = min(max(BEFORE_S, (end - begin) // 4), MOST_BEFORE_S)
    return history_content.between(begin - before, max(end, begin + usage_ranges.SHORTEST_S), now)


def _rows(incident: Incident, chosen: HistoryWindow) -> list[Any]:
    if incident.rule == rules.ORPHANED:
        return history_content.sums(GPUS, incident.gpu_id or "", chosen)
    if incident.rule == rules.CPU_HOG:
        return history_content.sums(HOSTS, incident.host, chosen)
    return usage_sums.points(_uses(incident), chosen, incident.host)


def _uses(incident: Incident) -> QuerySet[ProcessUse]:
    """The process uses that are the evidence."""
    uses = ProcessUse.objects.filter(host=incident.host)
    if incident.rule == rules.FAIR_SHARE:
        return usage_sums.uses_of(incident.user).filter(host=incident.host)
    if incident.rule in (rules.CLAIMED_EMPTY, rules.UNUSED_GPUS):
        return uses.filter(job_ref=incident.job_ref)
    if incident.rule == rules.OVER_MEMORY:
        return uses.filter(job_ref=incident.job_ref, gpu_id=incident.gpu_id)
    if incident.rule in (rules.LEAK, rules.IDLE_HELD, rules.EXTRA_GPUS) or not incident.user:
        return uses.filter(
            gpu_id=incident.gpu_id, pid=incident.pid or 0, start_ticks=incident.start_ticks or 0
        )
    return uses.filter(
        gpu_id=incident.gpu_id, user=incident.user, container=incident.container, job_ref=""
    )


def _panels(incident: Incident, hogs: GpuTimePolicy) -> list[Panel]:
    total = incident.gpu.memory_total_bytes if incident.gpu else None
    if incident.rule == rules.ORPHANED:
        held = mean("memory_byte_s", "memory_known_s", GIB)
        return [
            Panel("Memory in use", "GiB", (ChartLine("mean", held),), top=in_gib(total)),
            _gpu_use(),
        ]
    if incident.rule == rules.CPU_HOG:
        return [_banded("CPU", "%", mean("cpu_pct_s", "cpu_known_s"), 100, CPU_PCT)]
    if incident.rule == rules.FAIR_SHARE:
        count = max(1, Gpu.objects.filter(host=incident.host).count())
        share = _part_of(count)
        return [_banded("Share of all GPUs", "%", share, 100, incident.expected_pct)]
    use, held_limit = _limits(incident, hogs, total)
    several = incident.rule == rules.UNUSED_GPUS
    top = None if several else in_gib(total)
    return [
        _banded("GPUs used" if several else "Share of the GPU", *_scale(several), use),
        _banded("Memory held", "GiB", _held, top, held_limit),
    ]


def _scale(several: bool) -> tuple[str, Value, float]:
    return ("", _part_of(100), 1.0) if several else ("%", _part_of(1), 100.0)


def _limits(
    incident: Incident, hogs: GpuTimePolicy, total: int | None
) -> tuple[float | None, float | None]:
    """The rule's thresholds on use (%) and on memory (GiB)."""
    if incident.rule == rules.SUSTAINED:
        return hogs.sustained_pct, None
    if incident.rule == rules.MEMORY_HOG and total:
        return None, HOG_PCT / 100 * total / GIB
    if incident.rule == rules.OVER_MEMORY:
        booked = Claim.objects.filter(job_ref=incident.job_ref, gpu_uuid=incident.gpu_id)
        size = booked.values_list("memory_bytes", flat=True).first()
        return None, size / GIB if size else None
    return None, None


def _banded(title: str, unit: str, value: Value, top: float | None, limit: float | None) -> Panel:
    """A chart with a band above the threshold."""
    return Panel(title, unit, (ChartLine("mean", value),), top=top, limit=limit, band=True)


def _gpu_use() -> Panel:
    used = mean("utilization_pct_s", "utilization_known_s")
    peak = ChartLine("highest", highest("utilization_max_pct"), "peak")
    return Panel("Utilisation", "%", (ChartLine("mean", used), peak), top=100)


def _part_of(gpus: int) -> Value:
    """Used GPU time in percent of `gpus` GPUs. None: less than half of the time was measured."""

    def value(row: Row) -> float | None:
        if not row["seen_s"] or row["known_s"] < row["held_s"] / 2:
            return None
        return min(100.0, 100 * float(row["sm_s"]) / (gpus * float(row["seen_s"])))

    return value


def _held(row: Row) -> float | None:
    """Memory held, summed over the processes. None: unknown."""
    if not row["held_s"]:
        return 0.0 if row["seen_s"] else None
    if not row["memory_known_s"]:
        return None
    known_s = min(float(row["memory_known_s"]), float(row["seen_s"]))
    return float(row["memory_byte_s"]) / known_s / GIB if known_s else None


SHAPES = {
    Response.State.PLANNED: ("waiting", "planned"),
    Response.State.DONE: ("busy", "done"),
    Response.State.REFUSED: ("warning", "not possible"),
    Response.State.UNDONE: ("ok", "reverted"),
}
MAILS = {
    Message.State.WAITING: ("waiting", "sending"),
    Message.State.SENT: ("busy", "sent"),
    Message.State.FAILED: ("failing", "failed"),
    Message.State.DROPPED: ("unknown", "not sent"),
}


class ResponseRow(Struct, frozen=True):
    """A step or a mail. `shape` and `state` are its badge. `until`: when it was reverted."""

    at: datetime
    title: str
    shape: str
    state: str
    text: str
    until: datetime | None = None


def response_lines(incident: Incident, viewer: Viewer) -> list[ResponseRow]:
    """Only operators see the errors of mails, because these name services."""
    steps = [_step(row) for row in Response.objects.filter(incident=incident)]
    mails = Message.objects.filter(incident=incident).exclude(person="")
    return sorted([*steps, *(_mail(row, viewer) for row in mails)], key=lambda line: line.at)


def _step(row: Response) -> ResponseRow:
    shape, state = SHAPES[Response.State(row.state)]
    title = enforcement.TITLES[enforcement.Step(row.step)]
    if row.is_dry_run:
        return ResponseRow(row.at, title, "idle", "dry run", row.text)
    until = row.undone_at if row.state == Response.State.UNDONE else None
    return ResponseRow(row.at, title, shape, state, row.text, until)


def _mail(row: Message, viewer: Viewer) -> ResponseRow:
    shape, state = MAILS[Message.State(row.state)]
    if row.state == Message.State.WAITING and row.attempts:
        shape, state = "warning", "retrying"
    text = f"To {row.person}"
    if row.problem and viewer.operator:
        text = f"{text}: {row.problem}"
    return ResponseRow(row.sent_at or row.created_at, "Mail", shape, state, text)


# Pages of incidents, and the actions of users and operators.


SNOOZES = {"1": "1 h", "8": "8 h", "24": "1 day", "168": "7 days", "0": "unmute"}
EXEMPTIONS = {"1": "1 day", "7": "7 days", "30": "30 days", "": "no expiry"}


@require_safe
def incidents(request: HttpRequest) -> HttpResponse:
    filters, now = IncidentFilters.from_query(request.GET), timezone.now()
    viewer = viewer_of(request)
    context = {
        "filters": filters,
        "table": table(filters, viewer, now),
        "patterns": incident_rows.patterns() if filters.page == 1 else [],
        "exemptions": exemptions(now) if viewer.operator else [],
        "operator": viewer.operator,
        "mine": filters.person == viewer.username,
        "me": viewer.username,
        **choices(),
    }
    return render(request, "monitor/incidents.html", context)


@require_safe
def incident(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(Incident.objects.select_related("gpu", "use"), pk=pk)
    viewer, now = viewer_of(request), timezone.now()
    if not actions.may_see_details(row, viewer):
        return render(request, "monitor/incident_hidden.html", {"incident": row}, status=403)
    context = {
        **evidence(row, request.GET, now),
        "incident": row,
        "line": lines([row], viewer, now)[0],
        "advice": ADVICE.get(row.rule, ""),
        "trail": actions.trail(row),
        "viewer": viewer,
        "operator": viewer.operator,
        "figures": [
            (field, text)
            for field in INCIDENT_ANSWERS
            if field.title and (text := field.text(field.of(row)))
        ],
        "is_hog": row.rule in rules.HOG_RULES,
        "owner_name": row.job_owner or row.user or None,
        "scopes": actions.scopes(row),
        "snoozes": SNOOZES,
        "exempt_times": EXEMPTIONS,
        "ending_problem": actions.ending_problem(row),
        "end_question": f"End {row.program or 'process'} {row.pid} of {row.user or 'unknown'}?",
        "was_terminated": actions.was_terminated(row),
        "mail": steps.mail_to_owner(row),
        "mail_text": message_text(row, thresholds.current(AlertPolicy), is_owner=True),
    }
    return render(request, "monitor/incident.html", context)


@require_POST
def acknowledge(request: HttpRequest, pk: int) -> HttpResponse:
    row, viewer = _opened(request, pk)
    text = posted_text(request, "explanation", actions.LONGEST_TEXT)
    actions.acknowledge(row, text, viewer.username, timezone.now())
    messages.success(request, f"Incident {pk} is acknowledged.")
    return redirect("incident", pk)


@require_POST
def snooze(request: HttpRequest, pk: int) -> HttpResponse:
    row, viewer = _operated(request, pk)
    hours = request.POST.get("hours", "")
    if hours not in SNOOZES:
        messages.error(request, "Choose a duration.")
    else:
        actions.snooze(row, float(hours), viewer.username, timezone.now())
        muted = "no longer muted" if hours == "0" else f"muted for {SNOOZES[hours]}"
        messages.success(request, f"Incident {pk} is {muted}.")
    return redirect("incident", pk)


@require_POST
def write(request: HttpRequest, pk: int) -> HttpResponse:
    """Mail a text to the user of the incident."""
    row, viewer = _operated(request, pk)
    to = steps.mail_to_owner(row)
    text = posted_text(request, "text", actions.LONGEST_TEXT).strip()
    if to.problem or not text:
        messages.error(request, f"{to.problem or 'The message is empty'}. Nothing was sent.")
    else:
        actions.write_to_owner(row, to, text, viewer.username, timezone.now())
        messages.success(request, f"The message to {to.person} is on its way.")
    return redirect("incident", pk)


@require_POST
def end(request: HttpRequest, pk: int) -> HttpResponse:
    """End the process that the page has shown."""
    row, viewer = _operated(request, pk)
    shown = [request.POST.get(name, "") for name in ("pid", "start_ticks")]
    pid, start_ticks = (int(text) if is_number(text) else 0 for text in shown)
    kill = request.POST.get("signal") == "kill"
    now = timezone.now()
    problem = actions.end_process(row, (pid, start_ticks), viewer.username, now, kill=kill)
    if problem:
        messages.error(request, f"{problem} No signal was sent.")
    else:
        name = "SIGKILL" if kill else "SIGTERM"
        messages.success(request, f"{row.host} sends {name} to {row.program} {row.pid} now.")
    return redirect("incident", pk)


@require_POST
def exempt(request: HttpRequest, pk: int) -> HttpResponse:
    row, viewer = _operated(request, pk)
    scope, days = request.POST.get("scope", ""), request.POST.get("days", "")
    now = timezone.now()
    if scope not in actions.scopes(row) or days not in EXEMPTIONS:
        messages.error(request, "Choose what to exempt and a duration.")
    else:
        actions.exempt(
            row,
            scope,
            _until(days, now),
            viewer.username,
            now,
            reason=posted_text(request, "reason", actions.LONGEST_TEXT),
            all_rules=request.POST.get("rules") == "all",
        )
        name = actions.scopes(row)[scope]
        messages.success(request, f"The {scope} {name} is exempt, and incident {pk} is closed.")
    return redirect("incident", pk)


@require_POST
def close(request: HttpRequest, pk: int) -> HttpResponse:
    row, viewer = _operated(request, pk)
    reason = posted_text(request, "reason", actions.LONGEST_TEXT)
    if actions.close(row, viewer.username, timezone.now(), reason):
        messages.success(request, f"Incident {pk} is closed.")
    else:
        messages.info(request, "The incident is already closed.")
    return redirect("incident", pk)


@require_POST
def end_exemption(request: HttpRequest, pk: int) -> HttpResponse:
    viewer = viewer_of(request)
    if not viewer.operator:
        raise PermissionDenied
    row = get_object_or_404(Exemption, pk=pk)
    actions.end_exemption(row, viewer.username, timezone.now())
    messages.success(request, f"The exemption of the {row.scope} {row.name} has ended.")
    return redirect("incidents")


def _until(days: str, now: datetime) -> datetime | None:
    return now + timedelta(days=int(days)) if days else None


def _opened(request: HttpRequest, pk: int) -> tuple[Incident, Viewer]:
    """The incident, if the user may open it: the owner and operators."""
    row, viewer = get_object_or_404(Incident, pk=pk), viewer_of(request)
    if not actions.may_see_details(row, viewer):
        raise PermissionDenied
    return row, viewer


def _operated(request: HttpRequest, pk: int) -> tuple[Incident, Viewer]:
    viewer = viewer_of(request)
    if not viewer.operator:
        raise PermissionDenied
    return get_object_or_404(Incident, pk=pk), viewer
