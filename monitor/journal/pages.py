"""The page of events with its filters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, ClassVar
from zlib import crc32

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe
from msgspec import Struct

from monitor.journal.facts import EVENTS, event_kinds, label
from monitor.journal.rows import events
from monitor.models import Event, Gpu
from monitor.owners.policy import Viewer, event_text
from monitor.pages.requests import ListFilters, viewer_of
from monitor.usage.policy.ranges import RANGES, moment

# So many events that are alike become one line.
LEAST_GROUP = 3
NUMBER = re.compile(r"[0-9]+")
SEVERITIES = {"": "All", "warning": "Warnings", "error": "Errors"}


class EventFilters(ListFilters, frozen=True):
    """Filters of the page of events."""

    # The events of a batch become few lines, so a page has many events.
    PER_PAGE: ClassVar[int] = 200

    kind: str = ""
    severity: str = ""
    gpu: str = ""
    owner: str = ""
    job: str = ""
    range: str = ""
    since: str = ""
    until: str = ""

    @classmethod
    def accepted(cls, name: str, text: str) -> str | None:
        if name == "job":
            return text.lower().removeprefix("job").strip().removeprefix("#")
        allowed = {
            "kind": text in EVENTS or text in event_kinds(),
            "severity": text in SEVERITIES,
            "range": text in RANGES,
        }
        return text if allowed.get(name, True) else None

    @property
    def severities(self) -> list[tuple[str, str, bool]]:
        return [
            (self.with_(severity=name), text, name == self.severity)
            for name, text in SEVERITIES.items()
        ]

    @property
    def matches_all(self) -> bool:
        """Whether no filter is set."""
        return not self.is_set()

    def times(self, now: datetime, zone: tzinfo) -> tuple[datetime | None, datetime | None]:
        """Begin and end. A range counts back from now."""
        if self.range:
            return now - timedelta(seconds=RANGES[self.range][1]), None
        begin, end = moment(self.since, zone), moment(self.until, zone)
        return _at(begin), _at(end)


class EventRow(Struct, frozen=True):
    """An event as one viewer may read it, with the GPU's index instead of its UUID."""

    event: Event
    text: str
    kind: str
    gpu: str


class EventGroup(Struct, frozen=True):
    """Events that differ in their numbers only, such as the jobs of a batch; the newest first."""

    key: str
    rows: tuple[EventRow, ...]

    @property
    def first(self) -> EventRow:
        return self.rows[0]

    @property
    def others(self) -> tuple[EventRow, ...]:
        return self.rows[1:]


class EventTable(Struct, frozen=True):
    """A page of lines. `live`: new events may appear at its top."""

    lines: list[EventGroup]
    newer: str | None
    older: str | None
    live: bool


def table(filters: EventFilters, viewer: Viewer, now: datetime, zone: tzinfo) -> EventTable:
    since, until = filters.times(now, zone)
    matching = events.recent(
        filters.PER_PAGE + 1,
        kind=filters.kind,
        least=filters.severity,
        gpu_uuid=filters.gpu,
        owner=filters.owner,
        job_ref=filters.job,
        since=since,
        until=until,
        skip=filters.skip,
    )
    names = dict(gpus())
    return EventTable(
        lines=groups([_line(event, viewer, names) for event in matching[: filters.PER_PAGE]]),
        newer=filters.newer(),
        older=filters.older(len(matching)),
        live=filters.page == 1 and (until is None or until > now),
    )


def groups(rows: Iterable[EventRow]) -> list[EventGroup]:
    """Events of one kind, user, GPU and text without its numbers, at the place of the newest.

    Two of a kind stay alone; warnings and errors always do.
    """
    alike: dict[str, list[EventRow]] = {}
    for row in rows:
        event = row.event
        shape = (event.kind, event.owner, event.gpu_uuid, NUMBER.sub("0", row.text))
        is_alone = event.severity != "info"
        key = str(event.pk) if is_alone else f"{crc32(repr(shape).encode()):08x}"
        alike.setdefault(key, []).append(row)
    made = [
        EventGroup(key if group else str(row.event.pk), tuple(group) or (row,))
        for key, members in alike.items()
        for row, group in _split(members)
    ]
    return sorted(
        made, key=lambda group: (group.first.event.at, group.first.event.pk), reverse=True
    )


def _split(members: Sequence[EventRow]) -> Iterator[tuple[EventRow, Sequence[EventRow]]]:
    """All as one group, or each alone."""
    if len(members) >= LEAST_GROUP:
        yield members[0], members
    else:
        yield from ((row, ()) for row in members)


def choices() -> dict[str, Any]:
    """The options of the filters."""
    return {
        "kinds": [(group, [(k, label(k)) for k in sorted(of)]) for group, of in EVENTS.items()],
        "gpus": gpus(),
        "ranges": [(name, text) for name, (text, _) in RANGES.items()],
    }


def gpus() -> list[tuple[str, str]]:
    """(UUID, words) of each GPU, with its host if there are several hosts."""
    rows = list(Gpu.objects.order_by("host", "index").values_list("uuid", "host", "index"))
    several = len({host for _, host, _ in rows}) > 1
    return [(uuid, f"{host} GPU {i}" if several else f"GPU {i}") for uuid, host, i in rows]


def _line(event: Event, viewer: Viewer, names: Mapping[str, str]) -> EventRow:
    text = event_text(event.kind, event.text, event.owner, viewer)
    return EventRow(event, text, label(event.kind), names.get(event.gpu_uuid, ""))


def _at(t: int | None) -> datetime | None:
    return None if t is None else datetime.fromtimestamp(t, UTC)


@require_safe
def events_page(request: HttpRequest) -> HttpResponse:
    filters = EventFilters.from_query(request.GET)
    lines = table(filters, viewer_of(request), timezone.now(), timezone.get_current_timezone())
    context = {"filters": filters, "table": lines, **choices()}
    return render(request, "monitor/events.html", context)
