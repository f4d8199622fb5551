"""What people do about an incident; each is written down with who did it, in one transaction."""

from __future__ import annotations

from datetime import datetime, timedelta
from glob import escape

from django.db import transaction
from django.utils import timezone

from monitor import audit, events
from monitor.incidents import going_on
from monitor.models import AuditEntry, Exemption, Incident
from monitor.policy.privacy import Viewer
from monitor.policy.sparing import Exempt

# Seen later than this, it goes on: closing it by hand keeps it from opening again.
GOES_ON = timedelta(minutes=2)
LONGEST_TEXT = 1000


def answers_for(incident: Incident, viewer: Viewer) -> bool:
    """Whether it is the viewer's own to explain."""
    owner = incident.job_owner or incident.user
    return bool(owner) and owner == viewer.username


def may_open(incident: Incident, viewer: Viewer) -> bool:
    """Whether the viewer may see its evidence and its trail."""
    return viewer.operator or answers_for(incident, viewer)


def subject(incident: Incident) -> str:
    """Its name in the audit trail."""
    return f"incident {incident.pk}"


def trail(incident: Incident) -> list[AuditEntry]:
    return audit.about(subject(incident))


@transaction.atomic
def acknowledge(incident: Incident, explanation: str, by: str, now: datetime) -> None:
    """Somebody knows of it, and says why it is so; again changes the explanation."""
    before = incident.explanation
    incident.acknowledged_at, incident.acknowledged_by = now, by
    incident.explanation = explanation.strip()[:LONGEST_TEXT]
    incident.save(update_fields=["acknowledged_at", "acknowledged_by", "explanation"])
    said = f": {incident.explanation}" if incident.explanation else ""
    _note(incident, "INCIDENT_ACKNOWLEDGED", f"{by} knows of it{said}", by, now, before)


@transaction.atomic
def snooze(incident: Incident, hours: float, by: str, now: datetime) -> None:
    """Nobody is told of it, and it counts as no hog, for so long; 0 hours ends that."""
    until = now + timedelta(hours=hours) if hours > 0 else None
    before = incident.snoozed_until.isoformat() if incident.snoozed_until else None
    incident.snoozed_until = until
    incident.save(update_fields=["snoozed_until"])
    text = f"{by} snoozed it for {hours:g} h" if until else f"{by} ended the snooze"
    _note(incident, "INCIDENT_SNOOZED", text, by, now, before)


@transaction.atomic
def close(incident: Incident, by: str, now: datetime, reason: str = "") -> bool:
    """End it by hand; it does not open again before it has stopped. False: it was closed."""
    rows = Incident.objects.filter(pk=incident.pk, closed_at__isnull=True)
    mutes = now - incident.last_seen_at < GOES_ON
    if not rows.update(closed_at=now, closed_by=by, is_muted=mutes):
        return False
    incident.refresh_from_db()
    said = f": {reason.strip()[:LONGEST_TEXT]}" if reason.strip() else ""
    _note(incident, "INCIDENT_CLOSED", f"{by} closed it{said}", by, now)
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


def scopes(incident: Incident) -> dict[str, str]:
    """What can be exempt of it: scope -> name."""
    found = {
        Exemption.Scope.USER.value: incident.job_owner or incident.user,
        Exemption.Scope.PROGRAM.value: incident.program,
        Exemption.Scope.CONTAINER.value: incident.container,
    }
    return {scope: name for scope, name in found.items() if name}


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
    """Spare this person, program or container from the rule, or from all; and close what it fits.

    The name is meant as it stands: a program may well be called [x].
    """
    made = Exemption.objects.create(
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
    zone = timezone.get_current_timezone()
    lasts = f"until {until.astimezone(zone):%Y-%m-%d %H:%M %Z}" if until else "for good"
    from_what = "all rules" if all_rules else "this rule"
    text = f"{by} exempted {scope} {made.name} from {from_what} {lasts}"
    _note(incident, "INCIDENT_EXEMPTED", f"{text}{': ' if reason else ''}{reason}", by, now)
    for spared in (incident, *_covered(made, incident)):
        close(spared, by, now, "exempt")
    return made


def _covered(made: Exemption, but: Incident) -> list[Incident]:
    """What else is open, and would not be accused any more."""
    exemption = Exempt(made.scope, made.name, made.rule)
    rows = going_on().exclude(pk=but.pk)
    rows = rows.filter(rule=made.rule) if made.rule else rows
    return [
        row
        for row in rows
        if any(
            exemption.fits(user, row.program, row.container) for user in (row.user, row.job_owner)
        )
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


def _note(
    incident: Incident, action: str, text: str, by: str, now: datetime, before: str | None = None
) -> None:
    after = {
        "INCIDENT_ACKNOWLEDGED": incident.explanation,
        "INCIDENT_SNOOZED": incident.snoozed_until and incident.snoozed_until.isoformat(),
    }.get(action)
    audit.note(action, text, by=by, now=now, subject=subject(incident), before=before, after=after)
