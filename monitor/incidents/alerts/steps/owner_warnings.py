"""Rows: warnings to owners before something is done about an incident of theirs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db.models import F

from monitor.incidents.alerts.policy import AlertPolicy
from monitor.incidents.alerts.rows import how_to_answer, link, owner_summary
from monitor.incidents.alerts.steps import writer as alert_writer
from monitor.incidents.enforcement.policy import Step
from monitor.incidents.enforcement.wording import TO_COME
from monitor.incidents.facts import title
from monitor.models import Channel, Incident, Message
from monitor.thresholds import rows as thresholds

NO_CHANNEL = "There is no channel that mails owners, so nothing is done."
NO_ADDRESS = "{person} has no mail address, so nothing is done."


def write(
    incident: Incident, number: int, to_come: Iterable[tuple[Step, timedelta]], now: datetime
) -> str | None:
    """Put a warning on its way at once, whatever the hour; why not, None = it is on its way.

    It goes by the first channel to owners that is on, and rather by one that works. Nothing is
    done before it has arrived.
    """
    works_first = F("failing_since").asc(nulls_first=True)
    to_owners = Channel.objects.filter(enabled=True, to_owners=True, owner=None)
    channels = to_owners.order_by(works_first, "id")
    channel = channels.first()
    if channel is None:
        return NO_CHANNEL
    person = alert_writer.person_of(incident)
    receiver = alert_writer.address_of(person)
    if not receiver:
        return NO_ADDRESS.format(person=person or "The unknown owner")
    row = Message(
        channel=channel,
        about=f"incident:{incident.pk}",
        incident=incident,
        severity=incident.severity,
        number=number,
        person=person,
        receiver=receiver,
        rule=incident.rule,
        title=f"{'Again: ' if number > 1 else ''}{title(incident.rule, is_hog=incident.is_hog)}"[
            :200
        ],
        text=_text(incident, to_come),
        created_at=now,
        due_at=now,
    )
    Message.objects.bulk_create([row], ignore_conflicts=True)
    return None


def reached_at(incidents: Iterable[Incident]) -> dict[tuple[int, int], datetime]:
    """When each warning arrived, by incident and number; those that did not are not in it."""
    rows = Message.objects.filter(
        incident__in=list(incidents), number__gt=0, state=Message.State.SENT
    )
    sent = rows.values_list("incident_id", "number", "sent_at")
    return {(pk, number): at for pk, number, at in sent if pk and at}


def _text(incident: Incident, to_come: Iterable[tuple[Step, timedelta]]) -> str:
    steps = [
        f"- {after.total_seconds() / 60:.0f} minutes after the first of these mails:"
        f" {TO_COME[step]}"
        for step, after in to_come
        if step in TO_COME
    ]
    said = owner_summary(incident)
    page = link(thresholds.current(AlertPolicy), f"/incidents/{incident.pk}/")
    lines = [
        said.text,
        f"Process {incident.pid} on {incident.host}.",
        "",
        *([said.advice] if said.advice else []),
        "If this continues, gpucoord will:" if steps else "Please check whether it is needed.",
        *steps,
        *(["None of this happens if the use stops."] if steps else []),
        how_to_answer(page),
    ]
    return "\n".join(lines)
