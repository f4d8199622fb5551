"""Rows of alerts with defaults: a test names only what matters to it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from monitor.gpus.rows import snapshot as snapshots
from monitor.incidents.alerts.senders import NetworkLimits, OutgoingMessage
from monitor.incidents.alerts.steps import encrypt
from monitor.models import Channel, Incident
from tests.builders import NOW, gpu, gpu_uuid, snapshot


def channel(name: str = "ops", **changes: Any) -> Channel:
    """A webhook that takes everything from warnings on."""
    fields = {
        "service": "JSON",
        "encrypted_address": encrypt(f"json://u:s3cret@127.0.0.1:9/{name}"),
    }
    return Channel.objects.create(name=name, **(fields | changes))


def incident(**changes: Any) -> Incident:
    """Alice's python hogs GPU 0 since NOW."""
    snapshots.record(snapshot([gpu(0), gpu(1)]))
    fields: dict[str, Any] = {
        "host": "gpubox",
        "gpu_id": gpu_uuid(0),
        "rule": "sustained",
        "key": f"{Incident.objects.count()}",
        "pid": 4_200_001,
        "start_ticks": 1000 + 4_200_001,
        "program": "python",
        "user": "alice",
        "since_at": NOW,
        "opened_at": NOW,
        "last_seen_at": NOW,
        "severity": "warning",
        "text": "Detected GPU hog: python (PID 4200001, alice) at 95 % on GPU 0.",
    }
    return Incident.objects.create(**(fields | changes))


class Post:
    """Takes letters and answers as it is told: a problem by receiver or address, else none."""

    def __init__(self) -> None:
        self.letters: list[OutgoingMessage] = []
        self.problem: str | None = None

    def __call__(
        self,
        letters: Mapping[int, OutgoingMessage],
        limit_s: float,
        reach: NetworkLimits | None = None,
    ) -> dict[int, str | None]:
        self.letters += letters.values()
        return dict.fromkeys(letters, self.problem)

    @property
    def titles(self) -> list[str]:
        return [letter.title for letter in self.letters]


def later(minutes: float) -> datetime:
    return NOW + timedelta(minutes=minutes)
