"""Step: take, and take back, the steps about incidents; each is a row before it is done."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol

from django.db.models import Q, QuerySet
from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.incidents import CPU_HOG
from monitor.facts.readings import ProcessReading, Snapshot
from monitor.incidents import rows as open_incidents
from monitor.incidents.alerts import steps as alert_steps
from monitor.incidents.policy import enforcement as enforcement_plan
from monitor.incidents.policy.enforcement import (
    CPU_CORES,
    DID,
    NICE,
    RUN_S,
    STOP_S,
    UNDID,
    UNDOABLE,
    WARNINGS,
    WOULD,
    AccusedProcess,
    EnforcementCase,
    EnforcementPolicy,
    Step,
    StepRecord,
)
from monitor.journal.rows import audit, events
from monitor.models import Incident, Response
from monitor.runtime.rows.database import compiled_once
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from scheduler.runner.actions import Target

GIB = 1024**3
# A signal that an operator requested is not sent later, because much may have changed.
OLDEST_REQUEST = timedelta(minutes=2)
TOO_LATE = "This host got the request too late."
PLANNED, DONE = Response.State.PLANNED, Response.State.DONE
REFUSED, UNDONE = Response.State.REFUSED, Response.State.UNDONE


class ProcessActions(Protocol):
    """Actions on a process; see scheduler/runner/actions.py."""

    def owner(self, target: Target) -> int | None: ...
    def look(self, target: Target) -> dict[str, Any] | None: ...
    def lower(self, target: Target, nice: int) -> str | None: ...
    def restore(self, target: Target, before: dict[str, Any]) -> None: ...
    def cap(
        self, target: Target, before: dict[str, Any], cores: float, memory_bytes: int | None
    ) -> str | None: ...
    def uncap(self, target: Target, before: dict[str, Any]) -> None: ...
    def freeze(
        self, target: Target, run_s: float, stop_s: float, *, again: bool = False
    ) -> str | None: ...
    def thaw(self, target: Target) -> None: ...
    def end(self, target: Target, *, kill: bool = False) -> str | None: ...


class Enforcement:
    """Plans a step in one tick and executes it in the next, after the plan was committed."""

    name = "enforcement"

    def __init__(self, host: str, actions: ProcessActions) -> None:
        self._host = host
        self._actions = actions
        self._isolation = ItemIsolation(host, self.name)

    def judge(self, snapshot: Snapshot | None, now: datetime) -> object:
        policy = thresholds.current(EnforcementPolicy)
        readings = snapshot.processes if snapshot else ()
        processes: Processes = {(p.pid, p.start_ticks): p for p in readings}
        requested = self._cases(requested_by_hand(self._host), processes, now)
        self._isolation.each(requested, _name, lambda case: self._end(case, policy, now), now)
        lasting = self._cases(with_actions(self._host), processes, now)
        steps = self._isolation.each(
            lasting, _name, lambda case: self._go_on(case, policy, now), now
        )
        taken = [step for _, step in steps]
        if policy.enabled:
            # A failed item is neither ended nor escalated in the same tick.
            free = {case.incident.pk for case, step in steps if not step}
            lasting_ids = {case.incident.pk for case in lasting}
            leading = [
                case
                for case in self._leading(processes, policy, lasting_ids, now)
                if case.incident.pk in free or case.incident.pk not in lasting_ids
            ]
            begun = self._isolation.each(
                leading, _name, lambda case: self._begin(case, policy, now), now
            )
            taken += [step for _, step in begun]
        return tuple(step for step in taken if step)

    def _cases(
        self, rows: Mapping[Incident, list[Response]], processes: Processes, now: datetime
    ) -> list[OpenCase]:
        """Incidents with their actions; incidents that cannot be read are left out."""
        cases_by_incident = self._isolation.each(
            rows,
            lambda incident: f"case of incident {incident.pk}",
            lambda incident: case_of(incident, rows[incident], processes, self._actions.owner, now),
            now,
        )
        return [case for _, case in cases_by_incident]

    def _end(self, open_case: OpenCase, policy: EnforcementPolicy, now: datetime) -> None:
        """Do what an operator requested, which needs no policy."""
        for row in open_case.rows:
            problem = enforcement_plan.never(open_case.case.accused)
            if now - row.at > OLDEST_REQUEST:
                problem = TOO_LATE
            self._do(open_case, row, policy, now, problem)

    # Steps that are done already, or planned

    def _go_on(self, open_case: OpenCase, policy: EnforcementPolicy, now: datetime) -> Step | None:
        is_over = not enforcement_plan.is_enforceable(open_case.case, policy) or policy.dry_run
        if is_over or open_case.is_past:
            undone = [row for row in open_case.rows if open_case.is_past or _can_be_undone(row)]
            for row in reversed(undone):
                self._undo(open_case, row, now)
            return Step(undone[-1].step) if undone else None
        for row in open_case.rows:
            if row.state == DONE and row.step == Step.FREEZE:
                self._actions.freeze(open_case.target, RUN_S, STOP_S, again=True)
        planned = [row for row in open_case.rows if row.state == PLANNED]
        if not planned or not open_case.case.accused.is_there:
            return None
        self._do(open_case, planned[0], policy, now)
        return Step(planned[0].step)

    def _do(
        self,
        open_case: OpenCase,
        row: Response,
        policy: EnforcementPolicy,
        now: datetime,
        problem: str | None = None,
    ) -> None:
        """problem: why the step may not be done."""
        step = Step(row.step)
        problem = problem or self._act(step, open_case.target, row, policy)
        row.state = REFUSED if problem else DONE
        row.text = problem or DID[step].format(open_case.description)
        row.save(update_fields=["state", "text"])
        if problem:
            _report_refusal(open_case, step, problem, now)
        else:
            _add_event("ENFORCEMENT_ACTED", open_case, row.text, now, audited=True)

    def _act(
        self, step: Step, target: Target, row: Response, policy: EnforcementPolicy
    ) -> str | None:
        """Why it failed; None = it is done."""
        if step is Step.RENICE:
            return self._actions.lower(target, NICE)
        if step is Step.LIMIT:
            memory = int(policy.memory_gib * GIB) or None
            return self._actions.cap(target, row.before, CPU_CORES, memory)
        if step is Step.FREEZE:
            return self._actions.freeze(target, RUN_S, STOP_S)
        return self._actions.end(target, kill=step is Step.KILL)

    def _undo(self, open_case: OpenCase, row: Response, now: datetime) -> None:
        """Undo an action. It may only have been planned: after a crash that is unknown."""
        step, lasts = Step(row.step), _can_be_undone(row)
        if step is Step.RENICE:
            self._actions.restore(open_case.target, row.before)
        elif step is Step.LIMIT:
            self._actions.uncap(open_case.target, row.before)
        elif step is Step.FREEZE:
            self._actions.thaw(open_case.target)
        tells = row.state == DONE and lasts and self._actions.owner(open_case.target) is not None
        row.state, row.undone_at = UNDONE if lasts else row.state, now
        row.save(update_fields=["state", "undone_at"])
        if tells:
            _add_event(
                "ENFORCEMENT_UNDONE",
                open_case,
                UNDID[step].format(open_case.description),
                now,
                audited=True,
            )

    # Steps to do next

    def _leading(
        self,
        processes: Processes,
        policy: EnforcementPolicy,
        lasting_ids: Collection[int],
        now: datetime,
    ) -> list[OpenCase]:
        """One incident for each process: about which something is done already, else the oldest."""
        incidents = open_cases(self._host, dry_run=policy.dry_run)
        chosen: dict[Target, OpenCase] = {}
        ordered = sorted(incidents, key=lambda r: (r.pk not in lasting_ids, r.opened_at, r.pk))
        for open_case in self._cases({row: incidents[row] for row in ordered}, processes, now):
            if enforcement_plan.is_enforceable(open_case.case, policy):
                chosen.setdefault(dataclasses.replace(open_case.target, key=""), open_case)
        return list(chosen.values())

    def _begin(self, open_case: OpenCase, policy: EnforcementPolicy, now: datetime) -> Step | None:
        active = [row for row in open_case.rows if row.undone_at is None]
        undone = [row.undone_at for row in open_case.rows if row.undone_at is not None]
        case = replace(open_case.case, resumed_at=max(undone, default=None))
        reached = {} if policy.dry_run else alert_steps.reached_at([open_case.incident])
        taken = [step_record(row, reached) for row in active]
        step = enforcement_plan.next_step(case, taken, policy, now)
        if step is None:
            return None
        if policy.dry_run:
            text = WOULD[step].format(open_case.description)
            _store_response(open_case, step, DONE, text, now, dry=True)
            _add_event("ENFORCEMENT_DRY_RUN", open_case, text, now)
        elif step in WARNINGS:
            again = any(row.step == step for row in active)
            self._warn(open_case, step, policy, now, again=again)
        elif (before := self._actions.look(open_case.target)) is not None:
            before = {**before, "process": process_of(open_case)}
            _store_response(open_case, step, PLANNED, "", now, before=before)
        return step

    def _warn(
        self,
        open_case: OpenCase,
        step: Step,
        policy: EnforcementPolicy,
        now: datetime,
        *,
        again: bool,
    ) -> None:
        number = WARNINGS.index(step) + 1
        to_come = enforcement_plan.plan(policy)
        problem = alert_steps.warn_owner(open_case.incident, number, to_come, now)
        text = problem or DID[step].format(open_case.description)
        _store_response(open_case, step, REFUSED if problem else DONE, text, now)
        if problem is None:
            _add_event("ENFORCEMENT_ACTED", open_case, text, now, audited=True)
        elif not again:
            _report_refusal(open_case, step, problem, now)


def _name(open_case: OpenCase) -> str:
    return f"incident {open_case.incident.pk}"


def _can_be_undone(row: Response) -> bool:
    return row.state == PLANNED or (row.state == DONE and row.step in UNDOABLE)


def _report_refusal(open_case: OpenCase, step: Step, problem: str, now: datetime) -> None:
    text = f"{WOULD[step].format(open_case.description)}, but can't: {problem}"
    _add_event("ENFORCEMENT_REFUSED", open_case, text, now)


def _add_event(
    kind: str, open_case: OpenCase, text: str, now: datetime, *, audited: bool = False
) -> None:
    row = open_case.incident
    if audited:
        audit.note(kind, text, by=audit.GPUCOORD, now=now, subject=f"incident {row.pk}")
    events.add(
        kind,
        text,
        now=now,
        severity="info" if kind == "ENFORCEMENT_UNDONE" else "warning",
        host=row.host,
        gpu_uuid=row.gpu_id or "",
        owner=row.job_owner or row.user,
    )


def _store_response(
    open_case: OpenCase,
    step: Step,
    state: Response.State,
    text: str,
    now: datetime,
    *,
    dry: bool = False,
    before: dict[str, Any] | None = None,
) -> None:
    Response.objects.update_or_create(
        incident=open_case.incident,
        step=step.value,
        is_dry_run=dry,
        undone_at=None,
        defaults={"state": state, "text": text, "at": now, "before": before or {}},
    )


# The incidents about which something may be done, each with its process.

Id = tuple[int | None, int | None]
Processes = Mapping[Id, ProcessReading]
# The account of a process that is on no GPU; None = it has ended.
Owner = Callable[[Target], int | None]


class OpenCase(Struct, frozen=True):
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
        words = enforcement_plan.process(program, self.target.pid, row.user, index)
        by = next((response.by for response in self.rows if response.by), "")
        return f"{words} at the request of {by}" if by else words

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
    return _by_incident(relevant.exclude(state=PLANNED, by__gt=""))


def requested_by_hand(host: str) -> dict[Incident, list[Response]]:
    """By incident: the signals that operators have requested and that are not sent yet."""
    if not _any_begun():
        return {}
    rows = Response.objects.filter(state=PLANNED, by__gt="", undone_at=None, incident__host=host)
    return _by_incident(rows)


def _by_incident(rows: QuerySet[Response]) -> dict[Incident, list[Response]]:
    by_incident: dict[Incident, list[Response]] = {}
    for row in rows.select_related("incident__gpu", "incident__use").order_by("id"):
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
