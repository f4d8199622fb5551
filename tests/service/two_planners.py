"""Run as a program on a PostgreSQL database of its own: two hosts plan at the same instant, again
and again, for a person who may hold one GPU, with a job for the GPU of each. Prints the least and
the most that ever ran at once."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import django

ROUNDS = 15


def main() -> None:
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.db import connection, transaction
    from django.utils import timezone

    from monitor.gpus.rows import snapshot as monitor_store
    from scheduler.dispatch.steps.dispatcher import Dispatcher
    from scheduler.facts.jobs import AttemptEnding, NewJob, Outcome, Requirement
    from scheduler.facts.plans import PlanPolicy
    from scheduler.jobs.rows import changes as job_queue
    from scheduler.jobs.rows import transitions
    from scheduler.models import Attempt, Quota
    from tests.builders import gpu, gpu_uuid, host, snapshot

    call_command("migrate", verbosity=0)
    owner = User.objects.create_user("alice")
    Quota.objects.create(user=owner, gpus=1)
    together = Barrier(2, timeout=120)
    most: list[int] = []

    def submit(on: int) -> None:
        asked = Requirement(gpus=1, exclusive=True, gpu_uuid=gpu_uuid(on))
        job_queue.submit(NewJob(command="true", requirement=asked), owner, timezone.now())

    def see(number: int) -> str:
        name = f"host-{number}"
        seen = snapshot([gpu(number)], host=host(name=name), at=timezone.now())
        monitor_store.record(seen)
        return name

    def plan(number: int) -> None:
        dispatcher = Dispatcher(transaction.atomic, see(number), PlanPolicy())
        for _ in range(ROUNDS):
            together.wait()
            dispatcher.step(timezone.now(), has_room=True)
            if together.wait() == 0:
                clear()
        connection.close()

    def clear() -> None:
        """Count what runs, end it, and submit the same again."""
        running = Attempt.objects.filter(ended_at=None).select_related("job__owner")
        most.append(len(running))
        now = timezone.now()
        for attempt in running:
            transitions.record_end(
                attempt, AttemptEnding(outcome=Outcome.SUCCEEDED, ended_at=now), now
            )
            submit(int(attempt.host[-1]))

    submit(0)
    submit(1)
    with ThreadPoolExecutor(2) as hosts:
        list(hosts.map(plan, (0, 1)))
    sys.stdout.write(f"{min(most)} {max(most)}\n")


if __name__ == "__main__":
    main()
