"""A web process without loops for contract tests: what is submitted to it never runs.

`python -m tests.contract.serve PORT` on an empty GPUCOORD_DATA; prints a token of a user and one
of a superuser as JSON, then serves.
"""

from __future__ import annotations

import json
import sys
from datetime import time, timedelta

import django


def main(port: int) -> None:
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    print(json.dumps(_tokens()), flush=True)
    from daphne.cli import CommandLineInterface

    CommandLineInterface().run(
        ["-b", "127.0.0.1", "-p", str(port), "-v", "0", "gpucoord_site.asgi:application"]
    )


def _tokens() -> dict[str, str]:
    """The users with their tokens, and rows that the operations can be tried on."""
    from django.contrib.auth.models import User
    from django.utils import timezone

    from monitor.gpus.rows import snapshot as snapshots
    from monitor.models import Incident
    from monitor.owners import rows as account_rows
    from scheduler.models import TimeWindow
    from tests import jobs_made
    from tests.builders import gpu_uuid, process, snapshot

    now = timezone.now()
    user = User.objects.create_user("carla")
    superuser = User.objects.create_superuser("root")
    snapshots.record(snapshot(2, processes=(process(),)))
    for owner in (user, superuser):
        jobs_made.waiting(owner, at=now)
        TimeWindow.objects.create(
            user=owner, days=[0], start=time(20), end=time(22), zone="UTC", asked_at=now,
            asked_by=owner.username,
        )  # fmt: skip
        Incident.objects.create(
            host="gpubox", gpu_id=gpu_uuid(0), rule="sustained", key=owner.username,
            user=owner.username, severity="info", text="GPU 0 is overused",
            since_at=now - timedelta(hours=1), opened_at=now, last_seen_at=now,
        )  # fmt: skip
    return {each.username: account_rows.create_token(each, now)[1] for each in (user, superuser)}


if __name__ == "__main__":
    main(int(sys.argv[1]))
