"""The page of events: what the address asks for, and the lines that answer it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from urllib.parse import urlencode

from monitor import events
from monitor.event_kinds import EVENTS, known, words
from monitor.models import Event, Gpu
from monitor.policy.privacy import Viewer, event_text
from monitor.policy.windows import RANGES, moment

PER_PAGE = 50
MOST_PAGES = 2000
SEVERITIES = {"": "All", "warning": "Warnings", "error": "Errors"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the address asks for; what it doesn't know is left out."""

    kind: str = ""
    severity: str = ""
    gpu: str = ""
    owner: str = ""
    job: str = ""
    range: str = ""
    since: str = ""
    until: str = ""
    page: int = 1

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Wanted:
        def text(name: str) -> str:
            return str(query.get(name, "")).replace("\0", "").strip()[:150]

        kind, page = text("kind"), text("page")
        return cls(
            kind=kind if kind in EVENTS or kind in known() else "",
            severity=text("severity") if text("severity") in SEVERITIES else "",
            gpu=text("gpu"),
            owner=text("owner"),
            job=text("job").lower().removeprefix("job").strip().removeprefix("#"),
            range=text("range") if text("range") in RANGES else "",
            since=text("since"),
            until=text("until"),
            page=min(int(page), MOST_PAGES) if page.isdecimal() and len(page) < 9 else 1,
        )

    def with_(self, **changes: str) -> str:
        """The query of the same view with something changed, from its first page on."""
        named = {name: str(getattr(self, name)) for name in self.__slots__} | {"page": ""}
        return f"?{urlencode({k: v for k, v in (named | changes).items() if v})}"

    @property
    def severities(self) -> list[tuple[str, str, bool]]:
        return [
            (self.with_(severity=name), text, name == self.severity)
            for name, text in SEVERITIES.items()
        ]

    @property
    def anything(self) -> bool:
        """Whether nothing is asked for: then all events match."""
        return not any(getattr(self, name) for name in self.__slots__ if name != "page")

    def times(self, now: datetime, zone: tzinfo) -> tuple[datetime | None, datetime | None]:
        """From when until when; a range counts back from now."""
        if self.range:
            return now - timedelta(seconds=RANGES[self.range][1]), None
        begin, end = moment(self.since, zone), moment(self.until, zone)
        return _at(begin), _at(end)


@dataclass(frozen=True, slots=True)
class Line:
    """An event as one viewer may read it, with the GPU's index instead of its UUID."""

    event: Event
    text: str
    kind: str
    gpu: str


@dataclass(frozen=True, slots=True)
class Table:
    """A page of lines. `live`: new events may come at its top."""

    lines: list[Line]
    newer: str | None
    older: str | None
    live: bool


def table(wanted: Wanted, viewer: Viewer, now: datetime, zone: tzinfo) -> Table:
    since, until = wanted.times(now, zone)
    found = events.recent(
        PER_PAGE + 1,
        kind=wanted.kind,
        least=wanted.severity,
        gpu_uuid=wanted.gpu,
        owner=wanted.owner,
        job_ref=wanted.job,
        since=since,
        until=until,
        skip=(wanted.page - 1) * PER_PAGE,
    )
    names = dict(gpus())
    return Table(
        lines=[_line(event, viewer, names) for event in found[:PER_PAGE]],
        newer=wanted.with_(page=str(wanted.page - 1)) if wanted.page > 1 else None,
        older=wanted.with_(page=str(wanted.page + 1)) if len(found) > PER_PAGE else None,
        live=wanted.page == 1 and (until is None or until > now),
    )


def choices() -> dict[str, Any]:
    """What the filters offer."""
    return {
        "kinds": [(group, [(k, words(k)) for k in sorted(of)]) for group, of in EVENTS.items()],
        "gpus": gpus(),
        "ranges": [(name, text) for name, (text, _) in RANGES.items()],
    }


def gpus() -> list[tuple[str, str]]:
    """(uuid, words) of each GPU; with its host where there are several."""
    rows = list(Gpu.objects.order_by("host", "index").values_list("uuid", "host", "index"))
    several = len({host for _, host, _ in rows}) > 1
    return [(uuid, f"{host} GPU {i}" if several else f"GPU {i}") for uuid, host, i in rows]


def _line(event: Event, viewer: Viewer, names: Mapping[str, str]) -> Line:
    text = event_text(event.kind, event.text, event.owner, viewer)
    return Line(event, text, words(event.kind), names.get(event.gpu_uuid, ""))


def _at(t: int | None) -> datetime | None:
    return None if t is None else datetime.fromtimestamp(t, UTC)
