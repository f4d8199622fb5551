"""Rows <-> facts: the incidents about which something may be done, each with its process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet

from monitor import incidents
from monitor.models import Incident, Response
from monitor.policy import enforcement_words
from monitor.policy.enforcement import UNDOABLE, WARNINGS, Accused, Case, Step, Taken
from monitor.policy.hog_rules import CPU_HOG
from monitor.prepared import prepared
from monitor.readings import ProcessReading
from scheduler.runner.enforcing import Target

PLANNED, DONE = Response.State.PLANNED, Response.State.DONE
Id = tuple[int | None, int | None]
Processes = Mapping[Id, ProcessReading]
# The account of a process that is on no GPU; None = it has ended.
Owner = Callable[[Target], int | None]


@dataclass(frozen=True, slots=True)
class Open:
    """An incident, the process that steps are about, and the rows of what was done so far.

    is_past: these rows are about a process that is there no more, while the incident names another.
    """

    incident: Incident
    case: Case
    target: Target
    rows: tuple[Response, ...] = ()
    is_past: bool = False

    @property
    def who(self) -> str:
        row = self.incident
        index = row.gpu.index if row.gpu else None
        program = self.case.accused.program
        return enforcement_words.process(program, self.target.pid, row.user, index)

    @property
    def acts(self) -> list[Response]:
        """What was done, or is to be, to the process itself."""
        return acts_of(self.rows)


def of(
    row: Incident,
    rows: Iterable[Response],
    there: Processes,
    owner: Owner,
    now: datetime,
) -> Open:
    """What is done to a process goes on with that one: an incident may come to name another."""
    rows = tuple(rows)
    named: Id = (row.pid, row.start_ticks)
    known = next((r.before["process"] for r in acts_of(rows) if "process" in r.before), None)
    pid, ticks = (known["pid"], known["start_ticks"]) if known else named
    target = Target(f"incident-{row.pk}", pid or 0, ticks or 0, bool(row.container))
    found = there.get((pid, ticks)) if ticks else None
    is_there, uid = found is not None, found.uid if found else None
    if row.rule == CPU_HOG and found is None:
        uid = owner(target)
        is_there = uid is not None
    elif found is None and row.use:
        # As when it was last there: to be off the GPU for a moment changes nobody's scope.
        uid = row.use.uid
    program = found.program if found else known["program"] if known else row.program
    accused = Accused(
        host=row.host,
        user=row.user,
        uid=uid,
        program=program or "",
        container=row.container,
        job_ref=row.job_ref,
        is_there=is_there,
    )
    paused = any(until and until > now for until in (row.snoozed_until, row.exempt_until))
    case = Case(rule=row.rule, is_open=row.closed_at is None, is_paused=paused, accused=accused)
    return Open(row, case, target, rows, is_past=not is_there and (pid, ticks) != named)


def process_of(one: Open) -> dict[str, object]:
    """By which the next look knows what a row is about."""
    program = one.case.accused.program
    return {"pid": one.target.pid, "start_ticks": one.target.start_ticks, "program": program}


@prepared
def _any_begun() -> QuerySet[Response]:
    return Response.objects.filter(is_dry_run=False, undone_at=None).order_by()[:1]


def begun(host: str) -> dict[Incident, list[Response]]:
    """What was done to processes, or is to be: all of open incidents, of others what lasts."""
    if not _any_begun():
        return {}
    rows = Response.objects.filter(is_dry_run=False, undone_at=None, incident__host=host)
    lasts = Q(state=PLANNED) | Q(state=DONE, step__in=UNDOABLE)
    kept = rows.filter(lasts | Q(incident__closed_at=None)).exclude(step__in=WARNINGS)
    by_incident: dict[Incident, list[Response]] = {}
    for row in kept.select_related("incident__gpu", "incident__use").order_by("id"):
        by_incident.setdefault(row.incident, []).append(row)
    return by_incident


def going_on(host: str, *, dry_run: bool) -> dict[Incident, list[Response]]:
    """Each open incident of a process, with all that was done about it, taken back or not."""
    found = incidents.going_on(host).filter(pid__isnull=False).select_related("gpu", "use")
    by_incident: dict[Incident, list[Response]] = {row: [] for row in found}
    rows = Response.objects.filter(incident__in=by_incident, is_dry_run=dry_run).order_by("id")
    by_id = {row.pk: row for row in by_incident}
    for response in rows:
        by_incident[by_id[response.incident_id]].append(response)
    return by_incident


def taken(row: Response, reached: Mapping[tuple[int, int], datetime]) -> Taken:
    step = Step(row.step)
    at = row.at if row.is_dry_run else None
    if step in WARNINGS and not row.is_dry_run:
        at = reached.get((row.incident_id, WARNINGS.index(step) + 1))
    refused = row.state == Response.State.REFUSED
    return Taken(step=step, at=row.at, was_refused=refused, reached_at=at)


def acts_of(rows: Iterable[Response]) -> list[Response]:
    return [row for row in rows if row.undone_at is None and row.step not in WARNINGS]
