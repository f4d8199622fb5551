"""Metrics of what is judged and told: open incidents, and whether alerts arrive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from monitor import incidents, outbox, tallies
from monitor.metric_families import Families
from monitor.models import Channel, Message
from monitor.policy.alerting import SEVERITIES
from monitor.policy.hog_rules import TITLES


def add_incidents(into: Families, hosts: Collection[str]) -> None:
    rows = incidents.going_on().order_by().values_list("host", "rule", "severity")
    found = Counter(rows)
    none = {(host, rule, level) for host in hosts for rule in TITLES for level in SEVERITIES}
    what = "Incidents that go on; info: nobody waits, warning: others do, error: for long."
    for host, rule, severity in sorted(none | set(found)):
        labels = {"host": host, "rule": rule, "severity": severity}
        into.gauge("gpucoord_incidents_open", what, labels, found[host, rule, severity])


def add_alerts(into: Families) -> None:
    """By the kind of channel, such as Slack: names and addresses are nobody's business."""
    rows = Channel.objects.filter(enabled=True).values_list("service", "failing_since")
    channels = sorted({service for service, _ in rows})
    failing = Counter(service for service, since in rows if since)
    what = "Channels that alerts do not reach."
    for service in channels:
        into.gauge("gpucoord_alert_channels_failing", what, {"service": service}, failing[service])
    waiting = Message.objects.filter(state=Message.State.WAITING, channel__enabled=True)
    counts = Counter(waiting.order_by().values_list("channel__service", flat=True))
    what = "Messages on their way, those held back until morning too."
    for service in channels:
        into.gauge("gpucoord_alert_messages_waiting", what, {"service": service}, counts[service])
    _add_tries(into, channels)


def _add_tries(into: Families, services: Collection[str]) -> None:
    results = (outbox.DELIVERED, outbox.FAILED)
    tries = {(service, result): 0.0 for service in services for result in results}
    for row in tallies.of(tallies.ALERTS):
        service, _, result = row.subject.rpartition(" ")
        tries[service, result] = tries.get((service, result), 0.0) + row.value
    what = "Tries to deliver a message to a channel, by what became of them."
    for (service, result), count in sorted(tries.items()):
        labels = {"service": service, "result": result}
        into.counter("gpucoord_alert_tries_total", what, labels, count)
