"""Three users with different shares: python -m tests.bench.bench_shares [jobs of each] [seconds].

Everything is real: `gpucoord up`, HTTP, the loop, runners; 8 simulated GPUs that nobody else uses.
Each user submits as many jobs of one GPU. Printed are the parts of the GPUs' time in which GPUs
were given to jobs, and in which the programs of these jobs ran, while others waited; and the GPU
time of each user while all three waited.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import httpx

from tests.bench.bench_jobs import _token
from tests.processes.service import Service

GPUS = 8
SHARES = {"first": 50.0, "second": 33.3, "third": 16.7}


def main() -> None:
    given = [float(argument) for argument in sys.argv[1:]]
    jobs, seconds = (given + [200.0, 3.0][len(given) :])[:2]
    with tempfile.TemporaryDirectory(prefix="gpucoord-bench-") as folder:
        data = Path(folder) / "data"
        settings = "tests.bench.free_gpus_settings"
        with Service(
            data, settings, GPUCOORD_SIMULATED_GPUS=str(GPUS), GPUCOORD_RUN_AS="service"
        ) as service:
            _token(data)
            for name, token in add_users().items():
                headers = {"Authorization": f"Bearer {token}"}
                with httpx.Client(base_url=service.address, headers=headers, timeout=60) as client:
                    body = {"command": f"sleep {seconds}", "gpus": 1, "exclusive": True}
                    body |= {"array": f"1-{int(jobs)}", "name": name}
                    answer = client.post("/api/jobs/", json=body)
                    assert answer.status_code == 201, answer.text
            report(*wait_for_all(int(jobs) * len(SHARES)))


def add_users() -> dict[str, str]:
    """Their tokens."""
    from django.contrib.auth.models import User
    from django.utils import timezone

    from monitor.owners.rows import create_token
    from scheduler.models import Quota

    tokens = {}
    for name, share in SHARES.items():
        user = User.objects.create_user(name)
        Quota.objects.create(user=user, share_pct=share)
        tokens[name] = create_token(user, timezone.now(), name="bench")[1]
    return tokens


Span = tuple[str, float, float]


def wait_for_all(count: int) -> tuple[list[Span], list[Span]]:
    """Owner, placement and end of each job; the same from the start of its program on."""
    from scheduler.models import Attempt, Job

    while Job.objects.filter(outcome="succeeded").count() < count:
        time.sleep(2)
    rows = Attempt.objects.values_list(
        "job__owner__username", "placed_at", "started_at", "ended_at"
    )
    all_ = [
        (owner, placed.timestamp(), start.timestamp(), end.timestamp())
        for owner, placed, start, end in rows
        if start and end
    ]
    return [(who, at, end) for who, at, _, end in all_], [
        (who, at, end) for who, _, at, end in all_
    ]


def report(given: list[Span], spans: list[Span]) -> None:
    first, last = min(start for _, start, _ in spans), max(start for _, start, _ in spans)
    parts = (gpu_seconds(each, first, last) / GPUS / (last - first) for each in (given, spans))
    words = "{:.1%} of GPUs given, programs run on {:.1%}".format(*parts)
    print(f"while jobs wait   {last - first:6.1f} s, {words}")
    all_until = min(max(start for who, start, _ in spans if who == name) for name in SHARES)
    whole = gpu_seconds(spans, first, all_until)
    for name, share in SHARES.items():
        part = gpu_seconds((span for span in spans if span[0] == name), first, all_until) / whole
        print(f"{name:8} share {share:5.1f} %, GPU time while all wait {part:.1%}")


def gpu_seconds(spans: Iterable[Span], since: float, until: float) -> float:
    return sum(max(0.0, min(end, until) - max(start, since)) for _, start, end in spans)


if __name__ == "__main__":
    main()
