"""How many project modules one job enters: python -m tests.bench.count_hops [--modules].

A module counts if one of its functions or methods runs. Importing it, its constants and generated
methods of dataclasses do not count. Four figures, each of distinct modules:

- POST to page: the request that submits a job, the passes of the scheduler that place, start and
  end it, and the live region of its page, which shows its state. All middleware is included.
- whole page: the same with the request of the whole page: log, charts of its GPUs, menu.
- one placement: a step of the dispatcher that places one job on an idle server of 8 GPUs.
- runner: the processes that run the job, from their order to its result. They import no Django.

Everything runs once before it is counted, so that caches are warm. The job is of a user who has an
OS account, as most have.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django.test import Client

    from scheduler.dispatch.tasks import SchedulerPass

ROOT = Path(__file__).resolve().parents[2]
APPS = ("gpucoord_site", "monitor", "scheduler", "reports")
GPUS = 8
JOB = {"command": "true", "gpus": 1, "gpu_memory": "20GiB", "time_limit": "2h"}
PATIENCE_S = 30.0
# Runs in the process that starts runners: the forked ones keep the profile function.
RUNNER_PROGRAM = """
import os, sys
sys.path.append(sys.argv[1])
from scheduler.runner import run
seen = set()
def note(frame, event, arg):
    path = frame.f_code.co_filename
    if event == "call" and path.startswith(sys.argv[1]) and path not in seen:
        seen.add(path)
        log = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, path.encode() + b"\\n")
        os.close(log)
sys.setprofile(note)
run.serve(int(sys.argv[2]))
"""


def module_of(path: str) -> str | None:
    """The project's module in this file; None = of another package."""
    if not path.startswith(f"{ROOT}/"):
        return None
    name = path.removeprefix(f"{ROOT}/").removesuffix(".py").replace("/", ".")
    return name.removesuffix(".__init__") if name.split(".")[0] in APPS else None


@contextmanager
def counted(into: set[str]) -> Iterator[None]:
    """Add the modules whose functions run meanwhile in this thread."""

    def note(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>":
            name = module_of(code.co_filename)
            if name is not None:
                into.add(name)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--modules", action="store_true", help="list the modules")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpucoord-bench-") as folder:
        counts = count(Path(folder))
    for name, modules in counts.items():
        print(f"{name}: {len(modules)} modules")
        if arguments.modules:
            print(*(f"    {module}" for module in sorted(modules)), sep="\n")


def count(folder: Path) -> dict[str, set[str]]:
    os.environ |= {"GPUCOORD_DATA": str(folder), "GPUCOORD_PROBE": "simulated"}
    os.environ |= {"GPUCOORD_NODE": "gpubox", "GPUCOORD_RUN_AS": "nobody"}
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    from monitor.journal.rows import events

    with events.unlogged():
        return _count(folder / "runner-modules")


def _count(log: Path) -> dict[str, set[str]]:
    from django.contrib.auth.models import User
    from django.db import transaction
    from django.test import Client
    from django.utils import timezone

    from monitor.gpus.rows import snapshot as snapshots
    from scheduler.dispatch import tasks
    from scheduler.runner import launch
    from tests.builders import snapshot

    launch.PROGRAM = RUNNER_PROGRAM.replace("LOG", repr(str(log)))
    client = Client(headers={"host": "localhost"})
    client.force_login(
        User.objects.create_user("nobody"), "django.contrib.auth.backends.ModelBackend"
    )
    snapshots.record(snapshot(GPUS, at=timezone.now()))
    scheduler_pass = tasks.build_scheduler(transaction.atomic)
    scheduler_pass.open()
    try:
        client.get(f"/jobs/{_run(client, scheduler_pass, set())}/")
        # The pool has prepared the next runner by then.
        time.sleep(1)
        log.unlink(missing_ok=True)
        to_page: set[str] = set()
        job_id = _run(client, scheduler_pass, to_page)
        whole_page = set(to_page)
        with counted(whole_page):
            page = client.get(f"/jobs/{job_id}/")
        assert page.status_code == 200
        names = map(module_of, log.read_text().split())
        runner = {name for name in names if name is not None}
        placement = _place(client)
    finally:
        scheduler_pass.close()
    return {
        "POST to page": to_page,
        "whole page": whole_page,
        "one placement": placement,
        "runner": runner,
    }


def _submit(client: Client) -> int:
    answer = client.post("/api/jobs/", json.dumps(JOB), content_type="application/json")
    assert answer.status_code == 201, answer.content
    return int(answer.json()["id"])


def _run(client: Client, scheduler_pass: SchedulerPass, modules: set[str]) -> int:
    """Submit a job, run passes of the scheduler until it has ended, and render its live region."""
    from django.utils import timezone

    from monitor.gpus.rows import snapshot as snapshots
    from scheduler.jobs import consumers
    from scheduler.models import Job
    from tests.builders import snapshot

    with counted(modules):
        job_id = _submit(client)
    end = time.monotonic() + PATIENCE_S
    while Job.objects.get(pk=job_id).state != "finished":
        assert time.monotonic() < end, f"job {job_id} did not end within {PATIENCE_S:.0f} s"
        # On a busy machine the last reading may be too old to place a job.
        snapshots.record(snapshot(GPUS, at=timezone.now()))
        with counted(modules):
            scheduler_pass.step(timezone.now())
        time.sleep(0.05)
    assert Job.objects.get(pk=job_id).outcome == "succeeded"
    with counted(modules):
        html = consumers.load_views([job_id])[job_id].for_owner
    assert "succeeded" in html
    return job_id


def _place(client: Client) -> set[str]:
    from django.db import transaction
    from django.utils import timezone

    from monitor.gpus.rows import snapshot as snapshots
    from scheduler.dispatch.inputs import plan_policy
    from scheduler.dispatch.steps.dispatcher import Dispatcher
    from tests.builders import snapshot

    now = timezone.now()
    modules: set[str] = set()
    dispatcher = Dispatcher(transaction.atomic, "gpubox", plan_policy())
    for _ in range(2):
        _submit(client)
        now += timedelta(seconds=2)
        snapshots.record(snapshot(GPUS, at=now))
        modules.clear()
        with counted(modules):
            placed = dispatcher.step(now)
        assert len(placed) == 1
    return modules


if __name__ == "__main__":
    main()
