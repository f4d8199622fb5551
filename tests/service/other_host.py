"""Run as a program: another host on the same database. It submits jobs for which no datagram
reaches the first host, and prints how many seconds each took until it ran there."""

from __future__ import annotations

import sys
import time

import django

JOBS, PATIENCE_S = 3, 120.0


def main() -> None:
    django.setup()
    from django.contrib.auth.models import User
    from django.utils import timezone

    from scheduler.facts.jobs import NewJob, Requirement
    from scheduler.jobs.rows.changes import submit
    from scheduler.models import Attempt
    from tests.pace import PaceLog

    owner = User.objects.get(username="admin")
    for _ in range(JOBS):
        pace = PaceLog()
        pace.look()
        asked = NewJob(command="true", requirement=Requirement(gpus=0))
        job = submit(asked, owner, timezone.now())
        deadline = time.monotonic() + PATIENCE_S
        started = None
        while started is None and time.monotonic() < deadline:
            time.sleep(0.01)
            started = Attempt.objects.filter(job=job).values_list("started_at", flat=True).first()
        if started is None:
            sys.exit(f"job {job.pk} did not start within {PATIENCE_S:g} s")
        pace.look()
        took = pace.seconds(job.submitted_at.timestamp(), started.timestamp())
        sys.stdout.write(f"{took:.3f}\n")


if __name__ == "__main__":
    main()
