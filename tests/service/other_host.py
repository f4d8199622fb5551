"""Run as a program: another host on the same database. It submits jobs for which no datagram
reaches the first host, and prints how many seconds each took until it ran there."""

from __future__ import annotations

import sys
import time

import django

JOBS, PATIENCE_S = 9, 60.0


def main() -> None:
    django.setup()
    from django.contrib.auth.models import User
    from django.utils import timezone

    from scheduler.jobs import NewJob, Requirement
    from scheduler.models import Attempt
    from scheduler.store import submit
    from tests.pace import PaceLog

    owner = User.objects.get(username="admin")
    for number in range(JOBS):
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
        # Spread over the second, so that the clock's own tick can't be what starts them all.
        time.sleep(0.2 + 0.11 * number)


if __name__ == "__main__":
    main()
