"""Measures `gpucoord submit -d` from its start to its end; beside an earlier build, in one run.

    python -m tests.bench.bench_cli [FOLDER OF AN EARLIER BUILD]

Each build has a service of its own. Their submissions alternate.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.processes.service import ROOT, Service

SUBMISSIONS = 20
WARM_UP = 3


def submission(service: Service) -> tuple[float, float]:
    """Seconds until it ends, and the CPU time of the command."""
    env = service._env | {"GPUCOORD_URL": service.address}
    command = [sys.executable, "-m", "gpucoord_site", "submit", "-d", "--gpus", "0", "--", "true"]
    begun, used = time.perf_counter(), cpu_s()
    subprocess.run(command, env=env, cwd=service.root, check=True, capture_output=True)
    return time.perf_counter() - begun, cpu_s() - used


def cpu_s() -> float:
    """Of all processes that have ended and were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    roots = [ROOT, *(Path(name).resolve() for name in sys.argv[1:2])]
    with tempfile.TemporaryDirectory() as folder:
        services = [
            Service(Path(folder) / str(number), root=root, GPUCOORD_RUN_AS="auto")
            for number, root in enumerate(roots)
        ]
        try:
            for service in services:
                service.start()
            rounds = [
                [submission(service) for service in services] for _ in range(WARM_UP + SUBMISSIONS)
            ]
        finally:
            for service in services:
                service.stop()
    for number, what in enumerate(("until its end", "CPU time")):
        p50s = [
            statistics.median(times[number] for times in column)
            for column in zip(*rounds[WARM_UP:], strict=True)
        ]
        print(
            f"p50 of {SUBMISSIONS} submissions, {what}:", *(f"{1000 * p50:.0f} ms" for p50 in p50s)
        )
        print(f"  ratio to the earlier build: {p50s[0] / p50s[-1]:.2f}")


if __name__ == "__main__":
    main()
