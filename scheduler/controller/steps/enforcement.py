"""Step: take, and take back, the steps about incidents; each is a row before it is done."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from monitor.alerts.steps import owner_warnings
from monitor.enforcement import policy as enforcement_plan
from monitor.enforcement.policy import UNDOABLE, WARNINGS, EnforcementPolicy, Step
from monitor.enforcement.wording import DID, UNDID, WOULD
from monitor.facts.readings import Snapshot
from monitor.journal.rows import audit, events
from monitor.models import Incident, Response
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from scheduler.controller.steps import enforcement_cases as cases
from scheduler.controller.steps.enforcement_cases import OpenCase, Processes
from scheduler.runner.enforce.actions import Target

GIB = 1024**3
PLANNED, DONE = Response.State.PLANNED, Response.State.DONE
REFUSED, UNDONE = Response.State.REFUSED, Response.State.UNDONE


class ProcessActions(Protocol):
    """Actions on a process; see scheduler/runner/enforce/actions.py."""

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
        seen = snapshot.processes if snapshot else ()
        processes: Processes = {(p.pid, p.start_ticks): p for p in seen}
        lasting = self._cases(cases.with_actions(self._host), processes, now)
        steps = self._isolation.each(lasting, _name, lambda one: self._go_on(one, policy, now), now)
        taken = [step for _, step in steps]
        if policy.enabled:
            # What failed is neither ended nor escalated in the same tick.
            free = {one.incident.pk for one, step in steps if not step}
            lasting_ids = {one.incident.pk for one in lasting}
            leading = [
                one
                for one in self._leading(processes, policy, lasting_ids, now)
                if one.incident.pk in free or one.incident.pk not in lasting_ids
            ]
            begun = self._isolation.each(
                leading, _name, lambda one: self._begin(one, policy, now), now
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
            lambda incident: cases.case_of(
                incident, rows[incident], processes, self._actions.owner, now
            ),
            now,
        )
        return [one for _, one in cases_by_incident]

    # What is done already, or planned

    def _go_on(self, one: OpenCase, policy: EnforcementPolicy, now: datetime) -> Step | None:
        is_over = not enforcement_plan.is_enforceable(one.case, policy) or policy.dry_run
        if is_over or one.is_past:
            undone = [row for row in one.rows if one.is_past or _can_be_undone(row)]
            for row in reversed(undone):
                self._undo(one, row, now)
            return Step(undone[-1].step) if undone else None
        for row in one.rows:
            if row.state == DONE and row.step == Step.FREEZE:
                self._actions.freeze(one.target, policy.run_s, policy.stop_s, again=True)
        planned = [row for row in one.rows if row.state == PLANNED]
        if not planned or not one.case.accused.is_there:
            return None
        self._do(one, planned[0], policy, now)
        return Step(planned[0].step)

    def _do(self, one: OpenCase, row: Response, policy: EnforcementPolicy, now: datetime) -> None:
        step, target, actions = Step(row.step), one.target, self._actions
        if step is Step.RENICE:
            problem = actions.lower(target, policy.nice)
        elif step is Step.LIMIT:
            memory = int(policy.memory_gib * GIB) or None
            problem = actions.cap(target, row.before, policy.cpu_cores, memory)
        elif step is Step.FREEZE:
            problem = actions.freeze(target, policy.run_s, policy.stop_s)
        else:
            problem = actions.end(target, kill=step is Step.KILL)
        row.state = REFUSED if problem else DONE
        row.text = problem or DID[step].format(one.who)
        row.save(update_fields=["state", "text"])
        if problem:
            _report_refusal(one, step, problem, now)
        else:
            _add_event("ENFORCEMENT_ACTED", one, row.text, now, audited=True)

    def _undo(self, one: OpenCase, row: Response, now: datetime) -> None:
        """Undo an action. It may only have been planned: after a crash that is unknown."""
        step, lasts = Step(row.step), _can_be_undone(row)
        if step is Step.RENICE:
            self._actions.restore(one.target, row.before)
        elif step is Step.LIMIT:
            self._actions.uncap(one.target, row.before)
        elif step is Step.FREEZE:
            self._actions.thaw(one.target)
        tells = row.state == DONE and lasts and self._actions.owner(one.target) is not None
        row.state, row.undone_at = UNDONE if lasts else row.state, now
        row.save(update_fields=["state", "undone_at"])
        if tells:
            _add_event("ENFORCEMENT_UNDONE", one, UNDID[step].format(one.who), now, audited=True)

    # What is to be done next

    def _leading(
        self,
        processes: Processes,
        policy: EnforcementPolicy,
        lasting_ids: Collection[int],
        now: datetime,
    ) -> list[OpenCase]:
        """One incident for each process: about which something is done already, else the oldest."""
        open_cases = cases.open_cases(self._host, dry_run=policy.dry_run)
        chosen: dict[Target, OpenCase] = {}
        ordered = sorted(open_cases, key=lambda r: (r.pk not in lasting_ids, r.opened_at, r.pk))
        for one in self._cases({row: open_cases[row] for row in ordered}, processes, now):
            if enforcement_plan.is_enforceable(one.case, policy):
                chosen.setdefault(replace(one.target, key=""), one)
        return list(chosen.values())

    def _begin(self, one: OpenCase, policy: EnforcementPolicy, now: datetime) -> Step | None:
        active = [row for row in one.rows if row.undone_at is None]
        undone = [row.undone_at for row in one.rows if row.undone_at is not None]
        case = replace(one.case, resumed_at=max(undone, default=None))
        reached = {} if policy.dry_run else owner_warnings.reached_at([one.incident])
        taken = [cases.taken_step(row, reached) for row in active]
        step = enforcement_plan.next_step(case, taken, policy, now)
        if step is None:
            return None
        if policy.dry_run:
            text = WOULD[step].format(one.who)
            _store_response(one, step, DONE, text, now, dry=True)
            _add_event("ENFORCEMENT_DRY_RUN", one, text, now)
        elif step in WARNINGS:
            again = any(row.step == step for row in active)
            self._warn(one, step, policy, now, again=again)
        elif (before := self._actions.look(one.target)) is not None:
            before = {**before, "process": cases.process_of(one)}
            _store_response(one, step, PLANNED, "", now, before=before)
        return step

    def _warn(
        self, one: OpenCase, step: Step, policy: EnforcementPolicy, now: datetime, *, again: bool
    ) -> None:
        number = WARNINGS.index(step) + 1
        to_come = enforcement_plan.plan(policy)
        problem = owner_warnings.write(one.incident, number, to_come, now)
        text = problem or DID[step].format(one.who)
        _store_response(one, step, REFUSED if problem else DONE, text, now)
        if problem is None:
            _add_event("ENFORCEMENT_ACTED", one, text, now, audited=True)
        elif not again:
            _report_refusal(one, step, problem, now)


def _name(one: OpenCase) -> str:
    return f"incident {one.incident.pk}"


def _can_be_undone(row: Response) -> bool:
    return row.state == PLANNED or (row.state == DONE and row.step in UNDOABLE)


def _report_refusal(one: OpenCase, step: Step, problem: str, now: datetime) -> None:
    text = f"{WOULD[step].format(one.who)}, but can't: {problem}"
    _add_event("ENFORCEMENT_REFUSED", one, text, now)


def _add_event(
    kind: str, one: OpenCase, text: str, now: datetime, *, audited: bool = False
) -> None:
    row = one.incident
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
    one: OpenCase,
    step: Step,
    state: Response.State,
    text: str,
    now: datetime,
    *,
    dry: bool = False,
    before: dict[str, Any] | None = None,
) -> None:
    Response.objects.update_or_create(
        incident=one.incident,
        step=step.value,
        is_dry_run=dry,
        undone_at=None,
        defaults={"state": state, "text": text, "at": now, "before": before or {}},
    )
