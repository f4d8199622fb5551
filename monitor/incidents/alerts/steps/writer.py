"""Step: turn new events and incidents into messages for the channels that want them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.utils import timezone

from monitor.facts.answers import fact_from
from monitor.facts.readings import Snapshot
from monitor.incidents import facts as incident_facts
from monitor.incidents.alerts.policy import (
    INCIDENT,
    OWNER_AGAIN_AFTER,
    AlertPolicy,
    Notice,
    Route,
    due_at,
    rank,
    wants,
)
from monitor.incidents.alerts.rows import link, message_text
from monitor.incidents.alerts.steps import outbox
from monitor.incidents.rows import incidents as incident_open
from monitor.models import Channel, Event, Incident, Message
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.prepared import compiled_once
from monitor.thresholds import rows as thresholds

# Rows of other hosts may be committed later than ones with higher numbers.
OVERLAP = 50
AT_ONCE = 500
WORSE = "The incident became more severe; a newer message replaces this one."
# To operators, and to owners.
OWN = (False, True)


class AlertWriter:
    """The part that writes messages, and has them sent when some are due."""

    name = "alerts"

    def __init__(self, queue: Callable[[str], None]) -> None:
        self._queue = queue

    def judge(self, snapshot: Snapshot | None, now: datetime) -> object:
        written = write(now)
        if outbox.is_due(now):
            self._queue(outbox.TASK)
        return written


def write(now: datetime) -> int:
    """Write a message for each notice and channel that wants it; how many that were."""
    channels = _channels()
    if not channels:
        return 0
    isolation = ItemIsolation(settings.CONFIG.node, "alerts")
    policy, zone = thresholds.current(AlertPolicy), timezone.get_current_timezone()
    rows = list(_open_incidents(now))

    def notices_of(own: bool) -> list[Notice]:
        notices = isolation.convert(
            rows,
            lambda row: f"incident {row.pk}",
            lambda row: _of_incident(row, policy, is_owner=own),
            now,
        )
        return [notice for _, notice in notices]

    open_now = {own: notices_of(own) for own in OWN}
    happened = _events(channels)
    # Events of incidents are left out: the incidents themselves are reported, with their owner.
    reported = [event for event in happened if not _is_of_incident(event)]
    events = isolation.convert(
        reported, lambda row: f"event {row.pk}", lambda row: _of_event(row, policy), now
    )

    def write_to(channel: Channel) -> int:
        after = max(channel.seen_event - OVERLAP, channel.from_event)
        fresh = [notice for event, notice in events if event.pk > after]
        if channel.failing_since:
            # A failing channel does not report its own failure.
            fresh = [notice for notice in fresh if not notice.kind.startswith("ALERT_")]
        route = route_of(channel)
        notices = [*open_now[channel.to_owners], *fresh]
        matching = [notice for notice in notices if wants(route, notice)]
        written = _write(channel, route, matching, ChannelState(policy, now, zone, isolation))
        _advance(channel, happened)
        return written

    written = isolation.each(channels, lambda channel: f"channel {channel.name}", write_to, now)
    return sum(count for _, count in written)


@dataclass(frozen=True, slots=True)
class ChannelState:
    """Input for writing a message, besides its channel and notice."""

    policy: AlertPolicy
    now: datetime
    zone: tzinfo
    isolation: ItemIsolation


@compiled_once
def _channels() -> QuerySet[Channel]:
    return Channel.objects.filter(enabled=True, owner=None)


def route_of(channel: Channel) -> Route:
    return fact_from(Route, channel)


def switch_on(channel: Channel) -> None:
    """A new or re-enabled channel does not report past events."""
    channel.from_event = channel.seen_event = _newest_event()


def _newest_event() -> int:
    return Event.objects.order_by("-pk").values_list("pk", flat=True).first() or 0


def person_of(incident: Incident) -> str:
    """The responsible user; empty = unknown."""
    return incident.job_owner or incident.user


def address_of(person: str) -> str:
    """The person's mail address; empty where there is none."""
    return User.objects.filter(username=person).values_list("email", flat=True).first() or ""


def _write(channel: Channel, route: Route, notices: Sequence[Notice], writing: ChannelState) -> int:
    severities = _reported_severities(channel, [notice.about for notice in notices])
    new = [n for n in notices if rank(n.severity) > severities.get(n.about, -1)]
    written = writing.isolation.each(
        new,
        lambda notice: f"{notice.about} to channel {channel.name}",
        lambda notice: _write_one(channel, route, notice, severities, writing),
        writing.now,
    )
    return sum(is_written for _, is_written in written)


def _write_one(
    channel: Channel,
    route: Route,
    notice: Notice,
    severities: dict[str, int],
    writing: ChannelState,
) -> bool:
    """Whether a message was written; `told` then has its severity."""
    policy, now = writing.policy, writing.now
    is_known = rank(notice.severity) <= severities.get(notice.about, -1)
    if is_known or _is_repeat(channel, notice, policy, now):
        return False
    receiver = address_of(notice.person) if route.to_owners else ""
    if route.to_owners and not receiver:
        return False
    due = due_at(route, notice.severity, policy, now, writing.zone)
    row = message(channel, notice, now, due)
    row.receiver, row.person = receiver, notice.person if route.to_owners else ""
    if notice.about in severities:
        row.attachment = _supersede(channel, notice)
    _save(row)
    severities[notice.about] = rank(notice.severity)
    return True


def message(channel: Channel, notice: Notice, now: datetime, due: datetime) -> Message:
    """The row of a notice, not saved yet."""
    is_incident = bool(notice.rule)
    return Message(
        channel=channel,
        about=notice.about,
        incident_id=int(notice.about.partition(":")[2]) if is_incident else None,
        severity=notice.severity,
        rule=notice.rule,
        repeat_key=notice.repeat_key,
        title=notice.title[:200],
        text=notice.text,
        created_at=now,
        due_at=due,
    )


def _save(row: Message) -> None:
    # Another host's controller may have written the same.
    Message.objects.bulk_create([row], ignore_conflicts=True)


def _supersede(channel: Channel, notice: Notice) -> str:
    """Drop the waiting messages about the lower severity; returns their attachment."""
    rows = Message.objects.filter(channel=channel, about=notice.about, number=0)
    waiting = rows.filter(state=Message.State.WAITING)
    attached = waiting.exclude(attachment="").values_list("attachment", flat=True).first()
    waiting.update(state=Message.State.DROPPED, problem=WORSE)
    return attached or ""


def _reported_severities(channel: Channel, abouts: list[str]) -> dict[str, int]:
    """The highest severity that the channel has reported of each."""
    severities: dict[str, int] = {}
    rows = Message.objects.filter(channel=channel, about__in=abouts)
    for about, severity in rows.values_list("about", "severity"):
        severities[about] = max(severities.get(about, -1), rank(severity))
    return severities


def _is_repeat(channel: Channel, notice: Notice, policy: AlertPolicy, now: datetime) -> bool:
    """Whether the same was sent lately: an event of one GPU; to an owner, the same rule."""
    if channel.to_owners:
        since = now - OWNER_AGAIN_AFTER
        mine = Message.objects.filter(person=notice.person, rule=notice.rule, number=0)
        never_came = (Message.State.DROPPED, Message.State.FAILED)
        sent = mine.filter(created_at__gt=since).exclude(state__in=never_came)
        warned = Message.objects.filter(about=notice.about, person=notice.person, number__gt=0)
        return sent.exists() or warned.exists()
    if not notice.repeat_key:
        return False
    since = now - timedelta(minutes=policy.repeat_minutes)
    rows = Message.objects.filter(channel=channel, repeat_key=notice.repeat_key)
    return rows.filter(created_at__gt=since).exists()


def _events(channels: Iterable[Channel]) -> list[Event]:
    """The next events of all kinds: the channels advance over each that was read."""
    first = min(channel.seen_event for channel in channels)
    return list(Event.objects.filter(pk__gt=first - OVERLAP).order_by("pk")[:AT_ONCE])


def _is_of_incident(event: Event) -> bool:
    """Its incident is told itself; idle memory, which has an owner, is one too."""
    held = event.kind == "IDLE_RESOURCE_DETECTED" and bool(event.owner)
    return held or event.kind.startswith("INCIDENT_")


def _advance(channel: Channel, happened: Sequence[Event]) -> None:
    if happened and happened[-1].pk > channel.seen_event:
        Channel.objects.filter(pk=channel.pk).update(seen_event=happened[-1].pk)


def _open_incidents(now: datetime) -> Iterable[Incident]:
    """The open incidents that are neither muted nor exempt."""
    rows = (
        incident_open.open_incidents().exclude(snoozed_until__gt=now).exclude(exempt_until__gt=now)
    )
    return rows.select_related("gpu")


def _of_incident(row: Incident, policy: AlertPolicy, *, is_owner: bool) -> Notice:
    where = f"GPU {row.gpu.index} of {row.host}" if row.gpu else row.host
    return Notice(
        about=f"incident:{row.pk}",
        at=row.opened_at,
        severity=row.severity,
        kind=INCIDENT,
        rule=row.rule,
        host=row.host,
        gpu_uuid=row.gpu_id or "",
        person=person_of(row),
        title=f"{incident_facts.title(row.rule, is_hog=row.is_hog)}: {where}",
        text=message_text(row, policy, is_owner=is_owner),
    )


def _of_event(row: Event, policy: AlertPolicy) -> Notice:
    first = row.text.partition("\n")[0]
    where = link(policy, f"/gpus/{row.gpu_uuid}/" if row.gpu_uuid else "/events/")
    return Notice(
        about=f"event:{row.pk}",
        at=row.at,
        severity=row.severity,
        kind=row.kind,
        host=row.host,
        gpu_uuid=row.gpu_uuid,
        title=first,
        text="\n".join(filter(None, (row.text, f"{row.host} {row.kind}".strip(), where))),
        repeat_key=f"{row.kind}|{row.host}|{row.gpu_uuid}|{row.job_ref}"[:200],
    )
