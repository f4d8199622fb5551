"""Messages about events and incidents: written for the channels that want them, and sent.

Loops write them; a short task sends the due ones.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone
from msgspec import Struct

from monitor.facts.formats import fact_from
from monitor.facts.incidents import title
from monitor.facts.readings import Snapshot
from monitor.incidents import rows as incident_rows
from monitor.incidents.alerts.policy import (
    INCIDENT,
    OWNER_AGAIN_AFTER,
    AlertPolicy,
    Notice,
    Route,
    due_at,
    gives_up,
    pause,
    rank,
    wants,
)
from monitor.incidents.alerts.senders import NOTHING, Enclosure, NetworkLimits, OutgoingMessage
from monitor.incidents.policy.enforcement import TO_COME, Step
from monitor.incidents.wording import IncidentSummary, to_owner
from monitor.journal.rows import counters, events
from monitor.models import Channel, Event, Incident, Message
from monitor.runtime.rows import periodic_tasks
from monitor.runtime.rows.database import compiled_once
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds

if TYPE_CHECKING:
    from cryptography.fernet import Fernet


def owner_summary(incident: Incident) -> IncidentSummary:
    """The incident, worded for its owner."""
    gpu = f"GPU {incident.gpu.index}" if incident.gpu else "this machine"
    return to_owner(incident, gpu)


def first_line(incident: Incident, *, is_owner: bool) -> str:
    """The line that changes while the incident is open."""
    return owner_summary(incident).text if is_owner else incident.text


def message_text(incident: Incident, policy: AlertPolicy, *, is_owner: bool) -> str:
    page = link(policy, f"/incidents/{incident.pk}/")
    first = first_line(incident, is_owner=is_owner)
    if not is_owner:
        return f"{first}\n{page}".rstrip()
    subject = f"Process {incident.pid} on {incident.host}." if incident.pid else incident.host
    return "\n".join([first, subject, "", owner_summary(incident).advice, how_to_answer(page)])


def how_to_answer(page: str) -> str:
    """How the owner can answer."""
    text = "If you need it, explain it on the page of the incident, or contact an operator."
    return f"{text}\n{page}".rstrip()


def link(policy: AlertPolicy, path: str) -> str:
    """The address of a page; empty if the address of gpucoord is not set."""
    return policy.address.rstrip("/") + path if policy.address else ""


def encrypt(text: str) -> str:
    return _cipher().encrypt(text.encode()).decode()


def decrypt(encrypted: str) -> str | None:
    """None if the text was encrypted under another secret key, such as another host's."""
    from cryptography.fernet import InvalidToken

    try:
        return _cipher().decrypt(encrypted.encode()).decode()
    except InvalidToken:
        return None


def _cipher() -> Fernet:
    """The key is derived from the secret key and used for nothing else."""
    # 7 MB of each process that sends no alert.
    from cryptography.fernet import Fernet

    digest = hashlib.sha256(b"gpucoord channel:" + settings.SECRET_KEY.encode()).digest()
    return Fernet(base64.urlsafe_b64encode(digest))


Send = Callable[[Mapping[int, OutgoingMessage], float], Mapping[int, str | None]]
# Reads the enclosure with this key; NOTHING = it no longer exists.
ReadAttachment = Callable[[str], Enclosure]
_attachments: dict[str, ReadAttachment] = {}
TASK = "send_alerts"
# A service may refuse a message because of its file: later tries leave the file out.
TRIES_WITH_FILE = 3
DELIVERED, FAILED = "delivered", "failed"
# Maximum duration of a task, because the canary waits 8 s.
LIMIT_S = 6.0
# A sender that has not completed by then has died.
BUSY = timedelta(seconds=30)
LOCKED = (
    "This host cannot decrypt the address: the secret key has changed. Enter the address again."
)
OFF = "The channel was disabled."
OVER = "The incident closed before the message was sent."
UNWRITABLE = "The message could not be written; the log has the details."
NO_ANSWER = "The sender gave no answer."


def register_attachments(kind: str, read: ReadAttachment) -> None:
    """Messages with the attachment "KIND:KEY" are sent with what `read` returns."""
    _attachments[kind] = read


def network_limits() -> NetworkLimits:
    """The limits of the settings, for channels of operators."""
    config = settings.CONFIG
    return NetworkLimits(tuple(config.alerts_allow), config.alerts_follow_redirects)


def is_due(now: datetime) -> bool:
    """Whether a task should be queued: a message is due, and no task is sending."""
    waiting = _next_waiting()
    is_due = bool(waiting) and waiting[0].due_at <= now
    return is_due and not periodic_tasks.is_busy(TASK, BUSY, now)


@compiled_once
def _next_waiting() -> QuerySet[Message]:
    return Message.objects.filter(state=Message.State.WAITING).order_by("due_at").only("due_at")[:1]


def send_due(send: Send, now: datetime) -> int:
    """Send the due messages, one per channel; returns the number of tries.

    0 if another task is sending. A message that cannot be composed is set aside; a channel or
    message that fails does not affect the others.
    """
    if not periodic_tasks.begin(TASK, BUSY, now):
        return 0
    isolation = ItemIsolation(settings.CONFIG.node, "outbox", longest_retry=timedelta())
    try:
        chosen = _choose(now, isolation)
        letters, answers = _letters(chosen, now, isolation)
        answers |= send(letters, LIMIT_S) if letters else {}
        done = [message for message in chosen if message.pk in {*letters, *answers}]
        isolation.each(
            done,
            lambda message: f"result of message {message.pk}",
            lambda message: _note(message, answers.get(message.pk, NO_ANSWER), now),
            now,
        )
    finally:
        periodic_tasks.done(TASK, "", now)
    return len(chosen)


def _choose(now: datetime, isolation: ItemIsolation) -> list[Message]:
    """The oldest due of each channel, counted as tried before it is."""
    due = Message.objects.filter(state=Message.State.WAITING, due_at__lte=now)
    channels = Channel.objects.filter(pk__in=due.values("channel"))
    chosen = isolation.each(
        channels,
        lambda channel: f"channel {channel.name}",
        lambda channel: _first_of(channel, due, now),
        now,
    )
    return [message for _, message in chosen if message is not None]


def _first_of(channel: Channel, due: QuerySet[Message], now: datetime) -> Message | None:
    mine = due.filter(channel=channel).select_related("channel", "incident__gpu")
    if not channel.enabled:
        mine.update(state=Message.State.DROPPED, problem=OFF)
        return None
    # An incident that ended while its message waited for morning needs none any more.
    mine.filter(incident__closed_at__isnull=False).update(state=Message.State.DROPPED, problem=OVER)
    for snoozed in mine.filter(incident__snoozed_until__gt=now):
        until = snoozed.incident.snoozed_until if snoozed.incident else None
        mine.filter(pk=snoozed.pk).update(due_at=until or now)
    # The operator who asked for a test waits for it.
    tests = mine.filter(about__startswith="test:")
    message = (tests or mine).order_by("due_at", "id").first()
    if message is not None:
        message.attempts += 1
        message.due_at = now + pause(message.attempts)
        message.save(update_fields=["attempts", "due_at"])
    return message


def _as_it_is_now(message: Message) -> str:
    """A message that waited for hours says how long the incident has lasted by now."""
    if message.incident is None:
        return message.text
    first = first_line(message.incident, is_owner=bool(message.person))
    return "\n".join([first, *message.text.split("\n")[1:]])


def _letters(
    chosen: Iterable[Message], now: datetime, isolation: ItemIsolation
) -> tuple[dict[int, OutgoingMessage], dict[int, str | None]]:
    """Messages to send, and the problem of those whose address cannot be read."""
    chosen = list(chosen)
    prepared = isolation.each(chosen, lambda message: f"message {message.pk}", _letter, now)
    written = {message.pk for message, _ in prepared}
    for message in chosen:
        if message.pk not in written:
            _set_aside(message)
    letters = {message.pk: letter for message, letter in prepared if letter is not None}
    return letters, {pk: LOCKED for pk in written if pk not in letters}


def _letter(message: Message) -> OutgoingMessage | None:
    """The message as it is now; None = its address cannot be read."""
    message.text = _as_it_is_now(message)
    message.save(update_fields=["text"])
    address = decrypt(message.channel.encrypted_address)
    if address is None:
        return None
    return OutgoingMessage(
        address,
        message.title,
        message.text,
        message.severity,
        message.receiver,
        _enclosure(message),
        is_of_user=message.channel.owner_id is not None,
    )


def _enclosure(message: Message) -> Enclosure:
    kind, _, key = message.attachment.partition(":")
    read = _attachments.get(kind)
    if read is None or message.attempts > TRIES_WITH_FILE:
        return NOTHING
    return read(key)


def _set_aside(message: Message) -> None:
    """It is tried again later; its channel works, and goes on with other messages."""
    gives = gives_up(message.attempts)
    state = Message.State.FAILED if gives else Message.State.WAITING
    Message.objects.filter(pk=message.pk).update(state=state, problem=UNWRITABLE)


@transaction.atomic
def _note(message: Message, problem: str | None, now: datetime) -> None:
    channel = message.channel
    result = DELIVERED if problem is None else FAILED
    counters.add(counters.ALERTS, f"{channel.service} {result}")
    if problem is None:
        message.state, message.sent_at, message.problem = Message.State.SENT, now, ""
        message.save(update_fields=["state", "sent_at", "problem"])
        _works(channel, now)
        return
    message.problem = problem
    if gives_up(message.attempts):
        message.state = Message.State.FAILED
    message.save(update_fields=["state", "problem"])
    if not channel.to_owners:
        # A dead channel costs one try at a time; to owners, each has an address of his own.
        others = Message.objects.filter(channel=channel, state=Message.State.WAITING)
        others.filter(due_at__lt=message.due_at).update(due_at=message.due_at)
    _fails(channel, problem, now)


def _works(channel: Channel, now: datetime) -> None:
    failed = Channel.objects.filter(pk=channel.pk, failing_since__isnull=False)
    if failed.update(failing_since=None, problem="") and channel.owner_id is None:
        events.add("ALERT_WORKS", f"Alerts reach {channel.name} again", now=now)
    Channel.objects.filter(pk=channel.pk).update(worked_at=now)


def _fails(channel: Channel, problem: str, now: datetime) -> None:
    """Reported once, until the channel works again; a user's own service is no event."""
    begins = Channel.objects.filter(pk=channel.pk, failing_since=None).update(failing_since=now)
    if begins and channel.owner_id is None:
        text = f"Alerts do not reach {channel.name}: {problem}"
        events.add("ALERT_FAILED", text, now=now, severity="warning")
    Channel.objects.filter(pk=channel.pk).update(problem=problem)


def write_test(channel: Channel, by: str, receiver: str, now: datetime) -> Message:
    """Store a test message; a channel to owners sends it to the user who asked for it."""
    return Message.objects.create(
        channel=channel,
        about=f"test:{now.timestamp():.6f}",
        severity="info",
        person=by if channel.to_owners else "",
        receiver=receiver if channel.to_owners else "",
        title="Test message of gpucoord",
        text=f"{by} sent this test of the channel {channel.name}. Alerts reach you.",
        created_at=now,
        due_at=now,
    )


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
        if is_due(now):
            self._queue(TASK)
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


class ChannelState(Struct, frozen=True):
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
        incident_rows.open_incidents().exclude(snoozed_until__gt=now).exclude(exempt_until__gt=now)
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
        title=f"{title(row.rule, is_hog=row.is_hog)}: {where}",
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


# Warnings to owners before something is done about an incident of theirs.


NO_CHANNEL = "There is no channel that mails owners"
NO_ADDRESS = "{person} has no mail address"


class MailToOwner(Struct, frozen=True):
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
    person = person_of(incident)
    receiver = address_of(person)
    problem = ""
    if channel is None:
        problem = NO_CHANNEL
    elif not receiver:
        problem = NO_ADDRESS.format(person=person or "The unknown owner")
    return MailToOwner(person, receiver, channel, problem)


def warn_owner(
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
