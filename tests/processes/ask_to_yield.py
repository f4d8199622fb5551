"""Ask a job to yield and die at once: python -m tests.processes.ask_to_yield JOB."""

from __future__ import annotations

import os
import signal
import sys

import django

django.setup()

from django.utils import timezone  # noqa: E402

from scheduler.dispatch.steps import yields as yield_requests  # noqa: E402
from scheduler.facts.plans import Yield  # noqa: E402

yield_request = Yield(job_id=int(sys.argv[1]), code="OwnerPresent", text="The owner is there.")
assert yield_requests.ask(yield_request, timezone.now())
os.kill(os.getpid(), signal.SIGKILL)
