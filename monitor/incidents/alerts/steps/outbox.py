"""Step: send stored messages. Loops write them; a short task sends the due ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from monitor.incidents.alerts.policy import gives_up, pause
from monitor.incidents.alerts.rows import decrypt, first_line
from monitor.incidents.alerts.senders import (
    NOTHING,
    Enclosure,
    NetworkLimits,
    OutgoingMessage,
)
from monitor.journal.rows import counters, events
from monitor.models import Channel, Message
from monitor.runtime.rows import periodic_tasks
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.prepared import compiled_once

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
