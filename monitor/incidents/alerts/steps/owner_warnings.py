"""Rows: warnings to owners before something is done about an incident of theirs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import F

from monitor.incidents.alerts.policy import AlertPolicy
from monitor.incidents.alerts.rows import how_to_answer, link, owner_summary
from monitor.incidents.alerts.steps import writer as alert_writer
from monitor.incidents.facts import title
from monitor.incidents.policy.enforcement import TO_COME, Step
from monitor.models import Channel, Incident, Message
from monitor.thresholds import rows as thresholds

NO_CHANNEL = "There is no channel that mails owners"
NO_ADDRESS = "{person} has no mail address"


@dataclass(frozen=True, slots=True)
class MailToOwner:
    """How mails about an incident reach its user. problem: why they do not, "" = they do."""

    person: str
    receiver: str
    channel: Channel | None
    problem: str


def mail_to_owner(incident: Incident) -> MailToOwner:
    """By the first channel to owners that is on, and rather by one that works."""
    works_first = F("failing_since").asc(nulls_first=True)
    to_owners = Channel.objects.filter(enabled=True, to_owners=True, owner=None)
    channel = to_owners.order_by(works_first, "id").first()
    person = alert_writer.person_of(incident)
    receiver = alert_writer.address_of(person)
    problem = ""
    if channel is None:
        problem = NO_CHANNEL
    elif not receiver:
        problem = NO_ADDRESS.format(person=person or "The unknown owner")
    return MailToOwner(person, receiver, channel, problem)


def write(
    incident: Incident, number: int, to_come: Iterable[tuple[Step, timedelta]], now: datetime
) -> str | None:
    """Put a warning on its way at once, whatever the hour; why not, None = it is on its way.

    Nothing is done before it has arrived.
    """
    to = mail_to_owner(incident)
    if to.problem:
        return f"{to.problem}, so nothing is done."
    again = "Again: " if number > 1 else ""
    row = _message(incident, to, again, _text(incident, to_come), now)
    row.incident, row.about, row.number = incident, f"incident:{incident.pk}", number
    Message.objects.bulk_create([row], ignore_conflicts=True)
    return None


def write_by_hand(incident: Incident, to: MailToOwner, text: str, by: str, now: datetime) -> None:
    """Put an operator's message to the user on its way at once."""
    row = _message(incident, to, f"{by} asks: ", text, now)
    # Without the incident its first line stays; without the rule later mails are no repeats.
    row.about, row.rule = f"asked:{incident.pk}:{now.timestamp():.6f}", ""
    row.save()


def _message(incident: Incident, to: MailToOwner, before: str, text: str, now: datetime) -> Message:
    """Not saved yet, and about nothing."""
    return Message(
        channel=to.channel,
        severity=incident.severity,
        person=to.person,
        receiver=to.receiver,
        rule=incident.rule,
        title=f"{before}{title(incident.rule, is_hog=incident.is_hog)}"[:200],
        text=text,
        created_at=now,
        due_at=now,
    )


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
