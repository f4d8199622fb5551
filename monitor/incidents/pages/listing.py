"""The list of incidents with its filters, and the dashboard region of open incidents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import DatabaseError
from django.db.models import Case, IntegerField, Q, QuerySet, Value, When

from monitor.api import ListFilters
from monitor.facts.formats import first_few
from monitor.facts.incidents import headline, worst_part
from monitor.incidents import facts as incident_facts
from monitor.incidents.actions import may_see_details
from monitor.incidents.facts import (
    HOG_RULES,
    IDLE_HELD,
    SUSTAINED,
    TITLES,
    Badge,
    Badges,
    Rank,
    rank,
    title,
)
from monitor.incidents.rows import incidents as incident_open
from monitor.incidents.rows import incidents as open_incidents
from monitor.journal.pages import gpus
from monitor.models import Exemption, Incident
from monitor.owners.identity.policy import Viewer
from monitor.pages.live.frames import Context, Region
from monitor.usage.policy.ranges import RANGES

STATES = {"open": "Open", "closed": "Closed", "all": "All"}
WORST_FIRST = Case(
    When(severity="error", then=Value(0)),
    When(severity="warning", then=Value(1)),
    default=Value(2),
    output_field=IntegerField(),
)


@dataclass(frozen=True, slots=True)
class IncidentFilters(ListFilters):
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


@dataclass(frozen=True, slots=True)
class IncidentRow:
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


@dataclass(frozen=True, slots=True)
class IncidentTable:
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
        rows = rows.filter(open_incidents.of_person(filters.person))
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
    rows = open_incidents.not_snoozed(now)
    shown = sorted((row for row in rows if row.lead_id is None), key=worst_first)
    parts = {lead.pk: [lead] for lead in shown}
    for row in rows:
        if row.lead_id in parts:
            parts[row.lead_id].append(row)
    return {
        "lines": [(lead, headline(parts[lead.pk]), is_quiet(lead, now)) for lead in shown[:SHOWN]],
        "count": open_incidents.count(rows),
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
    return of(incident_open.not_snoozed(now))


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
        open=incident_open.count(all_rows),
        harmful=len({badge.incident for badge in harmful}),
        worst=worst,
    )


def badge_of(row: Incident) -> Badge:
    return Badge(
        word=incident_facts.badge(row.rule, is_hog=row.is_hog),
        severity=row.severity,
        incident=row.lead_id or row.pk,
        text=row.text,
        title=incident_facts.title(row.rule, is_hog=row.is_hog),
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
        incident_open.open_incidents().filter(incident_open.of_person(name)).select_related("gpu")
    )
    return sorted(rows, key=worst_first)
