"""Actions of users and operators on incidents; each is audited in the same transaction."""

from __future__ import annotations

from datetime import datetime, timedelta
from glob import escape

from django.db import transaction
from django.db.models import Q, QuerySet

from monitor.facts.formats import in_utc
from monitor.incidents.alerts import steps
from monitor.incidents.alerts.steps import MailToOwner
from monitor.incidents.policy.enforcement import AccusedProcess, Step, never
from monitor.incidents.policy.findings import ExemptionRule
from monitor.incidents.rows import open_rows
from monitor.journal.rows import audit, events
from monitor.models import AuditEntry, Exemption, Incident, Response
from monitor.owners.policy import Viewer

# An incident detected within this time is muted when it is closed by hand: it must not reopen.
STILL_ACTIVE = timedelta(minutes=2)
LONGEST_TEXT = 1000


def is_responsible(incident: Incident, viewer: Viewer) -> bool:
    """Whether the viewer is responsible for the incident and may explain it."""
    owner = incident.job_owner or incident.user
    return bool(owner) and owner == viewer.username


def may_see_details(incident: Incident, viewer: Viewer) -> bool:
    """Whether the viewer may see the evidence and the audit trail."""
    return viewer.operator or is_responsible(incident, viewer)


def subject(incident: Incident) -> str:
    """The name of the incident in the audit trail."""
    return f"incident {incident.pk}"


def trail(incident: Incident) -> list[AuditEntry]:
    return audit.about(subject(incident))


@transaction.atomic
def acknowledge(incident: Incident, explanation: str, by: str, now: datetime) -> None:
    """Acknowledge the incident with an explanation; a second call replaces the explanation."""
    before = incident.explanation
    incident.acknowledged_at, incident.acknowledged_by = now, by
    incident.explanation = explanation.strip()[:LONGEST_TEXT]
    incident.save(update_fields=["acknowledged_at", "acknowledged_by", "explanation"])
    reason = f": {incident.explanation}" if incident.explanation else ""
    _audit(
        incident,
        "INCIDENT_ACKNOWLEDGED",
        f"{by} acknowledged the incident{reason}",
        by,
        now,
        before,
    )


@transaction.atomic
def snooze(incident: Incident, hours: float, by: str, now: datetime) -> None:
    """Mute the incident: no alerts, and it does not count as a hog. 0 hours unmutes it."""
    until = now + timedelta(hours=hours) if hours > 0 else None
    before = incident.snoozed_until.isoformat() if incident.snoozed_until else None
    incident.snoozed_until = until
    incident.save(update_fields=["snoozed_until"])
    incident.facets.filter(closed_at__isnull=True).update(snoozed_until=until)
    text = f"{by} muted the incident for {hours:g} h" if until else f"{by} unmuted the incident"
    _audit(incident, "INCIDENT_SNOOZED", text, by, now, before)


@transaction.atomic
def write_to_owner(incident: Incident, to: MailToOwner, text: str, by: str, now: datetime) -> None:
    """Mail the text to the user of the incident. The text is part of the audit trail."""
    steps.write_by_hand(incident, to, text, by, now)
    _audit(incident, "INCIDENT_OWNER_MAILED", f"{by} wrote to {to.person}: {text}", by, now)


def ending_problem(incident: Incident) -> str:
    """Why operators cannot end the process of the incident here; "" = they can."""
    if incident.closed_at is not None:
        return "The incident is closed."
    if incident.pid is None or incident.start_ticks is None:
        return "The incident names no process."
    accused = AccusedProcess(
        host=incident.host,
        user=incident.user,
        uid=incident.use.uid if incident.use else None,
        job_ref=incident.job_ref,
    )
    return never(accused) or ""


@transaction.atomic
def end_process(
    incident: Incident, process: tuple[int, int], by: str, now: datetime, *, kill: bool = False
) -> str:
    """Have the host of the incident send SIGTERM or SIGKILL within seconds; why not, "" = it will.

    process: pid and start ticks that the operator was shown; another process is not signalled.
    """
    if problem := ending_problem(incident):
        return problem
    if process != (incident.pid, incident.start_ticks):
        return "The incident names another process now. Look at it again."
    pid, start_ticks = process
    step = Step.KILL if kill else Step.TERMINATE
    named = {"pid": pid, "start_ticks": start_ticks, "program": incident.program}
    Response.objects.update_or_create(
        incident=incident,
        step=step.value,
        is_dry_run=False,
        undone_at=None,
        defaults={
            "state": Response.State.PLANNED,
            "text": "",
            "at": now,
            "before": {"process": named},
            "by": by,
        },
    )
    text = f"{by} requested {'SIGKILL' if kill else 'SIGTERM'} for {incident.program} {pid}"
    _audit(incident, "INCIDENT_PROCESS_ENDED", text, by, now)
    return ""


def was_terminated(incident: Incident) -> bool:
    """Whether SIGTERM was sent to the process of the incident."""
    done = incident.responses.filter(step=Step.TERMINATE.value, state=Response.State.DONE)
    return done.filter(before__process__pid=incident.pid, undone_at=None).exists()


@transaction.atomic
def close(incident: Incident, by: str, now: datetime, reason: str = "") -> bool:
    """Close the incident and its facets. It reopens only after the rule has stopped to hold.

    False: it was closed already.
    """
    if not _end(Incident.objects.filter(pk=incident.pk), by, now):
        return False
    _end(incident.facets.all(), by, now)
    incident.refresh_from_db()
    if incident.lead_id is not None:
        return True
    why = f": {reason.strip()[:LONGEST_TEXT]}" if reason.strip() else ""
    _audit(incident, "INCIDENT_CLOSED", f"{by} closed the incident{why}", by, now)
    events.add(
        "INCIDENT_CLOSED",
        f"{by} closed: {incident.text}",
        now=now,
        host=incident.host,
        gpu_uuid=incident.gpu_id or "",
        job_ref=incident.job_ref,
        owner=incident.job_owner or incident.user,
    )
    return True


def _end(rows: QuerySet[Incident], by: str, now: datetime) -> int:
    is_active = Q(last_seen_at__gt=now - STILL_ACTIVE)
    rows = rows.filter(closed_at__isnull=True)
    muted = rows.filter(is_active).update(closed_at=now, closed_by=by, is_muted=True)
    return muted + rows.update(closed_at=now, closed_by=by)


def _separate_facets(incident: Incident, rule: str) -> None:
    """Turn the facets of other rules than `rule` into an incident of their own."""
    others = list(incident.facets.filter(closed_at__isnull=True).exclude(rule=rule).order_by("id"))
    if others:
        first = others[0]
        Incident.objects.filter(pk=first.pk).update(lead=None)
        Incident.objects.filter(pk__in=[row.pk for row in others[1:]]).update(lead=first)


def scopes(incident: Incident) -> dict[str, str]:
    """The possible exemptions of this incident: scope -> name."""
    names = {
        Exemption.Scope.USER.value: incident.job_owner or incident.user,
        Exemption.Scope.PROGRAM.value: incident.program,
        Exemption.Scope.CONTAINER.value: incident.container,
    }
    return {scope: name for scope, name in names.items() if name}


@transaction.atomic
def exempt(
    incident: Incident,
    scope: str,
    until: datetime | None,
    by: str,
    now: datetime,
    *,
    reason: str = "",
    all_rules: bool = False,
) -> Exemption:
    """Exempt the user, program or container from this rule or all, and close matching incidents.

    The name is escaped: a program may be called [x].
    """
    exemption = Exemption.objects.create(
        scope=scope,
        name=escape(scopes(incident)[scope]),
        rule="" if all_rules else incident.rule,
        reason=reason.strip()[:LONGEST_TEXT],
        by=by,
        from_at=now,
        until_at=until,
    )
    incident.exempt_until = until
    incident.save(update_fields=["exempt_until"])
    lasts = f"until {in_utc(until)}" if until else "without expiry"
    from_what = "all rules" if all_rules else "this rule"
    text = f"{by} exempted {scope} {exemption.name} from {from_what} {lasts}"
    _audit(incident, "INCIDENT_EXEMPTED", f"{text}{': ' if reason else ''}{reason}", by, now)
    if not all_rules:
        _separate_facets(incident, incident.rule)
    for exempted in (incident, *_also_exempt(exemption, incident)):
        close(exempted, by, now, "exempt")
    return exemption


def _also_exempt(exemption: Exemption, but: Incident) -> list[Incident]:
    """The other open incidents that the exemption covers."""
    exempts = ExemptionRule(exemption.scope, exemption.name, exemption.rule)
    rows = open_rows().exclude(pk=but.pk)
    rows = rows.filter(rule=exemption.rule) if exemption.rule else rows
    return [
        row
        for row in rows
        if any(exempts.fits(user, row.program, row.container) for user in (row.user, row.job_owner))
    ]


@transaction.atomic
def end_exemption(exemption: Exemption, by: str, now: datetime) -> None:
    before = exemption.until_at.isoformat() if exemption.until_at else None
    exemption.until_at = now
    exemption.save(update_fields=["until_at"])
    audit.note(
        "EXEMPTION_ENDED",
        f"{by} ended the exemption of {exemption.scope} {exemption.name}",
        by=by,
        now=now,
        subject=f"exemption {exemption.pk}",
        before=before,
        after=now.isoformat(),
    )


def _audit(
    incident: Incident, action: str, text: str, by: str, now: datetime, before: str | None = None
) -> None:
    after = {
        "INCIDENT_ACKNOWLEDGED": incident.explanation,
        "INCIDENT_SNOOZED": incident.snoozed_until and incident.snoozed_until.isoformat(),
    }.get(action)
    audit.note(action, text, by=by, now=now, subject=subject(incident), before=before, after=after)
