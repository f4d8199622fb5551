"""Submit one job, print its id, die at once: python -m tests.processes.submit_job COMMAND."""

from __future__ import annotations

import os
import signal
import sys

import django

django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.utils import timezone  # noqa: E402

from scheduler.facts.jobs import NewJob, Requirement  # noqa: E402
from scheduler.jobs.rows import changes as job_queue  # noqa: E402

owner = User.objects.get(is_superuser=True)
new = NewJob(command=sys.argv[1], requirement=Requirement(gpus=0))
job = job_queue.submit(new, owner, timezone.now())
os.write(1, f"{job.pk}\n".encode())
# Acknowledged: whatever comes now, the job is in the queue.
os.kill(os.getpid(), signal.SIGKILL)
