"""Step: take, and take back, the steps about incidents; each is a row before it is done."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from monitor import audit, events, owner_warnings, policies
from monitor.models import Response
from monitor.policy import enforcement
from monitor.policy.enforcement import UNDOABLE, WARNINGS, Step
from monitor.policy.enforcement_policy import EnforcementPolicy
from monitor.policy.enforcement_words import DID, UNDID, WOULD
from monitor.readings import Snapshot
from scheduler import enforcement_cases as cases
from scheduler.enforcement_cases import Open, Processes
from scheduler.runner.enforcing import Target

GIB = 1024**3
PLANNED, DONE = Response.State.PLANNED, Response.State.DONE
REFUSED, UNDONE = Response.State.REFUSED, Response.State.UNDONE


class Acting(Protocol):
    """What can be done to a process; see scheduler/runner/enforcing.py."""

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
    """The part. What is planned in one tick is done in the next: by then it is written down."""

    name = "enforcement"

    def __init__(self, host: str, hands: Acting) -> None:
        self._host = host
        self._hands = hands

    def judge(self, snapshot: Snapshot | None, now: datetime) -> object:
        policy = policies.current(EnforcementPolicy)
        seen = snapshot.processes if snapshot else ()
        there: Processes = {(p.pid, p.start_ticks): p for p in seen}
        lasting = [
            cases.of(incident, rows, there, self._hands.owner, now)
            for incident, rows in cases.begun(self._host).items()
        ]
        steps = [self._go_on(one, policy, now) for one in lasting]
        if policy.enabled:
            busy = {one.incident.pk for one, step in zip(lasting, steps, strict=True) if step}
            held = {one.incident.pk for one in lasting}
            for one in self._leading(there, policy, held, now):
                if one.incident.pk not in busy:
                    steps.append(self._begin(one, policy, now))
        return tuple(step for step in steps if step)

    # What is done already, or planned

    def _go_on(self, one: Open, policy: EnforcementPolicy, now: datetime) -> Step | None:
        is_over = not enforcement.holds(one.case, policy) or policy.dry_run
        if is_over or one.is_past:
            undone = [row for row in one.rows if one.is_past or _can_be_undone(row)]
            for row in reversed(undone):
                self._undo(one, row, now)
            return Step(undone[-1].step) if undone else None
        for row in one.rows:
            if row.state == DONE and row.step == Step.FREEZE:
                self._hands.freeze(one.target, policy.run_s, policy.stop_s, again=True)
        planned = [row for row in one.rows if row.state == PLANNED]
        if not planned or not one.case.accused.is_there:
            return None
        self._do(one, planned[0], policy, now)
        return Step(planned[0].step)

    def _do(self, one: Open, row: Response, policy: EnforcementPolicy, now: datetime) -> None:
        step, target, hands = Step(row.step), one.target, self._hands
        if step is Step.RENICE:
            problem = hands.lower(target, policy.nice)
        elif step is Step.LIMIT:
            memory = int(policy.memory_gib * GIB) or None
            problem = hands.cap(target, row.before, policy.cpu_cores, memory)
        elif step is Step.FREEZE:
            problem = hands.freeze(target, policy.run_s, policy.stop_s)
        else:
            problem = hands.end(target, kill=step is Step.KILL)
        row.state = REFUSED if problem else DONE
        row.text = problem or DID[step].format(one.who)
        row.save(update_fields=["state", "text"])
        if problem:
            _refused(one, step, problem, now)
        else:
            _tell("ENFORCEMENT_ACTED", one, row.text, now, audited=True)

    def _undo(self, one: Open, row: Response, now: datetime) -> None:
        """Harmless when it was only planned: nobody knows whether it was done before a crash."""
        step, lasts = Step(row.step), _can_be_undone(row)
        if step is Step.RENICE:
            self._hands.restore(one.target, row.before)
        elif step is Step.LIMIT:
            self._hands.uncap(one.target, row.before)
        elif step is Step.FREEZE:
            self._hands.thaw(one.target)
        tells = row.state == DONE and lasts and self._hands.owner(one.target) is not None
        row.state, row.undone_at = UNDONE if lasts else row.state, now
        row.save(update_fields=["state", "undone_at"])
        if tells:
            _tell("ENFORCEMENT_UNDONE", one, UNDID[step].format(one.who), now, audited=True)

    # What is to be done next

    def _leading(
        self, there: Processes, policy: EnforcementPolicy, held: Collection[int], now: datetime
    ) -> list[Open]:
        """One incident for each process: about which something is done already, else the oldest."""
        found = cases.going_on(self._host, dry_run=policy.dry_run)
        chosen: dict[Target, Open] = {}
        for row in sorted(found, key=lambda r: (r.pk not in held, r.opened_at, r.pk)):
            one = cases.of(row, found[row], there, self._hands.owner, now)
            if enforcement.holds(one.case, policy):
                chosen.setdefault(replace(one.target, key=""), one)
        return list(chosen.values())

    def _begin(self, one: Open, policy: EnforcementPolicy, now: datetime) -> Step | None:
        mine = [row for row in one.rows if row.undone_at is None]
        undone = [row.undone_at for row in one.rows if row.undone_at is not None]
        case = replace(one.case, resumed_at=max(undone, default=None))
        reached = {} if policy.dry_run else owner_warnings.reached_at([one.incident])
        taken = [cases.taken(row, reached) for row in mine]
        step = enforcement.next_step(case, taken, policy, now)
        if step is None:
            return None
        if policy.dry_run:
            text = WOULD[step].format(one.who)
            _note(one, step, DONE, text, now, dry=True)
            _tell("ENFORCEMENT_DRY_RUN", one, text, now)
        elif step in WARNINGS:
            again = any(row.step == step for row in mine)
            self._warn(one, step, policy, now, again=again)
        elif (before := self._hands.look(one.target)) is not None:
            before = {**before, "process": cases.process_of(one)}
            _note(one, step, PLANNED, "", now, before=before)
        return step

    def _warn(
        self, one: Open, step: Step, policy: EnforcementPolicy, now: datetime, *, again: bool
    ) -> None:
        number = WARNINGS.index(step) + 1
        to_come = enforcement.plan(policy)
        problem = owner_warnings.write(one.incident, number, to_come, now)
        text = problem or DID[step].format(one.who)
        _note(one, step, REFUSED if problem else DONE, text, now)
        if problem is None:
            _tell("ENFORCEMENT_ACTED", one, text, now, audited=True)
        elif not again:
            _refused(one, step, problem, now)


def _can_be_undone(row: Response) -> bool:
    return row.state == PLANNED or (row.state == DONE and row.step in UNDOABLE)


def _refused(one: Open, step: Step, problem: str, now: datetime) -> None:
    text = f"{WOULD[step].format(one.who)}, but can't: {problem}"
    _tell("ENFORCEMENT_REFUSED", one, text, now)


def _tell(kind: str, one: Open, text: str, now: datetime, *, audited: bool = False) -> None:
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


def _note(
    one: Open,
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
