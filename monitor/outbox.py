"""Rows: messages on their way. Loops write them; a short task sends what is due."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from django.db import transaction

from monitor import chores, events, policies, tallies
from monitor.incident_letters import first_line
from monitor.models import Channel, Message
from monitor.policy.alerting import AlertPolicy, gives_up, pause
from monitor.sealing import opened
from monitor.senders.notify import Letter

Send = Callable[[Mapping[int, Letter], float], Mapping[int, str | None]]
TASK = "send_alerts"
DELIVERED, FAILED = "delivered", "failed"
# A task may hold a worker for so long; the canary waits 8 s.
LIMIT_S = 6.0
# A sender that has not said that it is done by then has died.
BUSY = timedelta(seconds=30)
LOCKED = "This host can't read the address: it was entered under another secret key. Enter it anew."
OFF = "Its channel was switched off."
OVER = "It was over before this could be sent."


def is_due(now: datetime) -> bool:
    """Whether a task should be queued: something is due, and nobody is sending."""
    due = Message.objects.filter(state=Message.State.WAITING, due_at__lte=now)
    return due.exists() and not chores.is_busy(TASK, BUSY, now)


def send_due(send: Send, now: datetime) -> int:
    """Send what is due, one message to each channel; how many were tried.

    0 also when another sender is at work: there is one at a time.
    """
    if not chores.begin(TASK, BUSY, now):
        return 0
    try:
        chosen = _choose(now)
        letters, locked = _letters(chosen)
        answers = {**locked, **(send(letters, LIMIT_S) if letters else {})}
        for message in chosen:
            _note(message, answers.get(message.pk, "Nobody knows what became of it."), now)
    finally:
        chores.done(TASK, "", now)
    return len(chosen)


def _choose(now: datetime) -> list[Message]:
    """The oldest due of each channel, counted as tried before it is."""
    policy = policies.current(AlertPolicy)
    due = Message.objects.filter(state=Message.State.WAITING, due_at__lte=now)
    chosen: list[Message] = []
    for channel in Channel.objects.filter(pk__in=due.values("channel")):
        if not channel.enabled:
            due.filter(channel=channel).update(state=Message.State.DROPPED, problem=OFF)
            continue
        mine = due.filter(channel=channel).select_related("channel", "incident__gpu")
        # An incident that ended while its message waited for morning needs none any more.
        mine.filter(incident__closed_at__isnull=False).update(
            state=Message.State.DROPPED, problem=OVER
        )
        for snoozed in mine.filter(incident__snoozed_until__gt=now):
            until = snoozed.incident.snoozed_until if snoozed.incident else None
            mine.filter(pk=snoozed.pk).update(due_at=until or now)
        # Whoever asked for a test waits for it.
        tests = mine.filter(about__startswith="test:")
        chosen += (tests or mine).order_by("due_at", "id")[:1]
    for message in chosen:
        message.attempts += 1
        message.due_at = now + pause(message.attempts, policy)
        message.text = _as_it_is_now(message)
        message.save(update_fields=["attempts", "due_at", "text"])
    return chosen


def _as_it_is_now(message: Message) -> str:
    """What waited for hours tells how long it has lasted by now; its first line is the incident."""
    if message.incident is None:
        return message.text
    first = first_line(message.incident, is_owner=bool(message.person))
    return "\n".join([first, *message.text.split("\n")[1:]])


def _letters(chosen: Iterable[Message]) -> tuple[dict[int, Letter], dict[int, str | None]]:
    letters: dict[int, Letter] = {}
    locked: dict[int, str | None] = {}
    for message in chosen:
        address = opened(message.channel.sealed)
        if address is None:
            locked[message.pk] = LOCKED
        else:
            letters[message.pk] = Letter(
                address, message.title, message.text, message.severity, message.receiver
            )
    return letters, locked


@transaction.atomic
def _note(message: Message, problem: str | None, now: datetime) -> None:
    channel = message.channel
    result = DELIVERED if problem is None else FAILED
    tallies.add(tallies.ALERTS, f"{channel.service} {result}")
    if problem is None:
        message.state, message.sent_at, message.problem = Message.State.SENT, now, ""
        message.save(update_fields=["state", "sent_at", "problem"])
        _works(channel, now)
        return
    message.problem = problem
    if gives_up(message.attempts, policies.current(AlertPolicy)):
        message.state = Message.State.FAILED
    message.save(update_fields=["state", "problem"])
    if not channel.to_owners:
        # A dead channel costs one try at a time; to owners, each has an address of his own.
        others = Message.objects.filter(channel=channel, state=Message.State.WAITING)
        others.filter(due_at__lt=message.due_at).update(due_at=message.due_at)
    _fails(channel, problem, now)


def _works(channel: Channel, now: datetime) -> None:
    failed = Channel.objects.filter(pk=channel.pk, failing_since__isnull=False)
    if failed.update(failing_since=None, problem=""):
        events.add("ALERT_WORKS", f"Alerts reach {channel.name} again", now=now)
    Channel.objects.filter(pk=channel.pk).update(worked_at=now)


def _fails(channel: Channel, problem: str, now: datetime) -> None:
    """Told once, until it works again."""
    if Channel.objects.filter(pk=channel.pk, failing_since=None).update(failing_since=now):
        text = f"Alerts do not reach {channel.name}: {problem}"
        events.add("ALERT_FAILED", text, now=now, severity="warning")
    Channel.objects.filter(pk=channel.pk).update(problem=problem)


def write_test(channel: Channel, by: str, receiver: str, now: datetime) -> Message:
    """A message that only shows whether others arrive; to owners: to the one who asked."""
    return Message.objects.create(
        channel=channel,
        about=f"test:{now.timestamp():.6f}",
        severity="info",
        person=by if channel.to_owners else "",
        receiver=receiver if channel.to_owners else "",
        title="A test of gpucoord",
        text=f"{by} asked for this test of {channel.name}. Alerts reach you.",
        created_at=now,
        due_at=now,
    )
