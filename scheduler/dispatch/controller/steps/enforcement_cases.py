"""Rows <-> facts: the incidents about which something may be done, each with its process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet

from monitor.facts.readings import ProcessReading
from monitor.incidents.enforcement import policy as enforcement_wording
from monitor.incidents.enforcement.policy import (
    UNDOABLE,
    WARNINGS,
    AccusedProcess,
    EnforcementCase,
    Step,
    StepRecord,
)
from monitor.incidents.facts import CPU_HOG
from monitor.incidents.rows import open as open_incidents
from monitor.models import Incident, Response
from monitor.runtime.rows.prepared import compiled_once
from scheduler.runner.enforce.actions import Target

PLANNED, DONE = Response.State.PLANNED, Response.State.DONE
Id = tuple[int | None, int | None]
Processes = Mapping[Id, ProcessReading]
# The account of a process that is on no GPU; None = it has ended.
Owner = Callable[[Target], int | None]


@dataclass(frozen=True, slots=True)
class OpenCase:
    """An incident, the process that its actions concern, and their rows.

    is_past: the process has ended, and the incident names another one.
    """

    incident: Incident
    case: EnforcementCase
    target: Target
    rows: tuple[Response, ...] = ()
    is_past: bool = False

    @property
    def description(self) -> str:
        row = self.incident
        index = row.gpu.index if row.gpu else None
        program = self.case.accused.program
        return enforcement_wording.process(program, self.target.pid, row.user, index)

    @property
    def acts(self) -> list[Response]:
        """Actions on the process itself, planned ones included."""
        return actions_of(self.rows)


def case_of(
    row: Incident,
    rows: Iterable[Response],
    processes: Processes,
    owner: Owner,
    now: datetime,
) -> OpenCase:
    """The case of an incident. Actions stay with their process if the incident names another."""
    rows = tuple(rows)
    named: Id = (row.pid, row.start_ticks)
    recorded = next((r.before["process"] for r in actions_of(rows) if "process" in r.before), None)
    pid, ticks = (recorded["pid"], recorded["start_ticks"]) if recorded else named
    target = Target(f"incident-{row.pk}", pid or 0, ticks or 0, bool(row.container))
    process = processes.get((pid, ticks)) if ticks else None
    is_there, uid = process is not None, process.uid if process else None
    if row.rule == CPU_HOG and process is None:
        uid = owner(target)
        is_there = uid is not None
    elif process is None and row.use:
        # As it was last seen: a short absence from the GPU does not change the scope.
        uid = row.use.uid
    program = process.program if process else recorded["program"] if recorded else row.program
    accused = AccusedProcess(
        host=row.host,
        user=row.user,
        uid=uid,
        program=program or "",
        container=row.container,
        job_ref=row.job_ref,
        is_there=is_there,
    )
    paused = any(until and until > now for until in (row.snoozed_until, row.exempt_until))
    case = EnforcementCase(
        rule=row.rule,
        is_hog=row.is_hog,
        is_open=row.closed_at is None,
        is_paused=paused,
        accused=accused,
    )
    return OpenCase(row, case, target, rows, is_past=not is_there and (pid, ticks) != named)


def process_of(open_case: OpenCase) -> dict[str, object]:
    """Identifies the process of a row at the next tick."""
    program = open_case.case.accused.program
    return {
        "pid": open_case.target.pid,
        "start_ticks": open_case.target.start_ticks,
        "program": program,
    }


@compiled_once
def _any_begun() -> QuerySet[Response]:
    return Response.objects.filter(is_dry_run=False, undone_at=None).order_by()[:1]


def with_actions(host: str) -> dict[Incident, list[Response]]:
    """Actions on processes: all of open incidents, and lasting ones of closed incidents."""
    if not _any_begun():
        return {}
    rows = Response.objects.filter(is_dry_run=False, undone_at=None, incident__host=host)
    lasts = Q(state=PLANNED) | Q(state=DONE, step__in=UNDOABLE)
    relevant = rows.filter(lasts | Q(incident__closed_at=None)).exclude(step__in=WARNINGS)
    by_incident: dict[Incident, list[Response]] = {}
    for row in relevant.select_related("incident__gpu", "incident__use").order_by("id"):
        by_incident.setdefault(row.incident, []).append(row)
    return by_incident


def open_cases(host: str, *, dry_run: bool) -> dict[Incident, list[Response]]:
    """Each open incident of a process, with all that was done about it, taken back or not."""
    incidents = (
        open_incidents.open_rows(host).filter(pid__isnull=False).select_related("gpu", "use")
    )
    by_incident: dict[Incident, list[Response]] = {row: [] for row in incidents}
    rows = Response.objects.filter(incident__in=by_incident, is_dry_run=dry_run).order_by("id")
    by_id = {row.pk: row for row in by_incident}
    for response in rows:
        by_incident[by_id[response.incident_id]].append(response)
    return by_incident


def step_record(row: Response, reached: Mapping[tuple[int, int], datetime]) -> StepRecord:
    step = Step(row.step)
    at = row.at if row.is_dry_run else None
    if step in WARNINGS and not row.is_dry_run:
        at = reached.get((row.incident_id, WARNINGS.index(step) + 1))
    refused = row.state == Response.State.REFUSED
    return StepRecord(step=step, at=row.at, was_refused=refused, reached_at=at)


def actions_of(rows: Iterable[Response]) -> list[Response]:
    return [row for row in rows if row.undone_at is None and row.step not in WARNINGS]
