"""The page of incidents: what the address asks for, and the lines that answer it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.db.models import Case, IntegerField, Q, QuerySet, Value, When

from monitor import incidents
from monitor.incident_actions import may_open
from monitor.models import Exemption, Incident
from monitor.pages.event_page import gpus
from monitor.policy.hog_rules import TITLES
from monitor.policy.privacy import Viewer
from monitor.policy.windows import RANGES

PER_PAGE = 50
MOST_PAGES = 2000
STATES = {"open": "Open", "closed": "Closed", "all": "All"}
WORST_FIRST = Case(
    When(severity="error", then=Value(0)),
    When(severity="warning", then=Value(1)),
    default=Value(2),
    output_field=IntegerField(),
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the address asks for; what it doesn't know is left out."""

    state: str = "open"
    rule: str = ""
    person: str = ""
    gpu: str = ""
    range: str = ""
    page: int = 1

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Wanted:
        def text(name: str) -> str:
            return str(query.get(name, "")).replace("\0", "").strip()[:150]

        page = text("page")
        return cls(
            state=text("state") if text("state") in STATES else "open",
            rule=text("rule") if text("rule") in TITLES else "",
            person=text("person"),
            gpu=text("gpu"),
            range=text("range") if text("range") in RANGES else "",
            page=min(max(int(page), 1), MOST_PAGES) if page.isdecimal() and len(page) < 9 else 1,
        )

    def with_(self, **changes: str) -> str:
        """The query of the same view with something changed, from its first page on."""
        named = {name: str(getattr(self, name)) for name in self.__slots__} | {"page": ""}
        return f"?{urlencode({k: v for k, v in (named | changes).items() if v})}"

    @property
    def states(self) -> list[tuple[str, str, bool]]:
        return [
            (self.with_(state=name), words, name == self.state) for name, words in STATES.items()
        ]

    @property
    def narrowed(self) -> bool:
        return any((self.rule, self.person, self.gpu, self.range))


@dataclass(frozen=True, slots=True)
class Line:
    """An incident as one viewer sees it. `opens`: they may see its page."""

    incident: Incident
    title: str
    gpu: str
    opens: bool
    is_snoozed: bool
    is_quiet: bool


@dataclass(frozen=True, slots=True)
class Table:
    lines: list[Line]
    newer: str | None
    older: str | None


# Not seen for so long, an open incident is quiet: it closes soon unless it comes back.
QUIET = timedelta(seconds=45)


def matching(wanted: Wanted, now: datetime) -> QuerySet[Incident]:
    """The incidents asked for, the worst and longest of the open ones first."""
    rows = Incident.objects.all()
    if wanted.state != "all":
        rows = rows.filter(closed_at__isnull=wanted.state == "open")
    if wanted.rule:
        rows = rows.filter(rule=wanted.rule)
    if wanted.person:
        rows = rows.filter(incidents.of_person(wanted.person))
    if wanted.gpu:
        rows = rows.filter(gpu_id=wanted.gpu)
    if wanted.range:
        since = now - timedelta(seconds=RANGES[wanted.range][1])
        rows = rows.filter(last_seen_at__gte=since)
    if wanted.state == "open":
        return rows.order_by(WORST_FIRST, "since_at", "id")
    return rows.order_by("-opened_at", "-id")


def table(wanted: Wanted, viewer: Viewer, now: datetime) -> Table:
    skip = (wanted.page - 1) * PER_PAGE
    found = list(matching(wanted, now)[skip : skip + PER_PAGE + 1])
    return Table(
        lines=lines(found[:PER_PAGE], viewer, now),
        newer=wanted.with_(page=str(wanted.page - 1)) if wanted.page > 1 else None,
        older=wanted.with_(page=str(wanted.page + 1)) if len(found) > PER_PAGE else None,
    )


def lines(found: Iterable[Incident], viewer: Viewer, now: datetime) -> list[Line]:
    names = dict(gpus())
    return [_line(incident, viewer, names, now) for incident in found]


def _line(incident: Incident, viewer: Viewer, names: Mapping[str, str], now: datetime) -> Line:
    is_open = incident.closed_at is None
    snoozed = incident.snoozed_until
    return Line(
        incident,
        TITLES.get(incident.rule, incident.rule),
        names.get(incident.gpu_id or "", ""),
        opens=may_open(incident, viewer),
        is_snoozed=is_open and snoozed is not None and snoozed > now,
        is_quiet=is_quiet(incident, now),
    )


def is_quiet(incident: Incident, now: datetime) -> bool:
    return incident.closed_at is None and now - incident.last_seen_at > QUIET


def choices() -> dict[str, Any]:
    """What the filters offer."""
    return {
        "rules": sorted(TITLES.items(), key=lambda item: item[1]),
        "gpus": gpus(),
        "ranges": [(name, text) for name, (text, _) in RANGES.items()],
    }


def exemptions(now: datetime) -> list[tuple[Exemption, str]]:
    """Those in force, with the rule that each is from, in words."""
    rows = Exemption.objects.filter(Q(until_at__isnull=True) | Q(until_at__gt=now))
    return [
        (row, TITLES.get(row.rule, "all rules") if row.rule else "all rules")
        for row in rows.order_by("scope", "name")
    ]
