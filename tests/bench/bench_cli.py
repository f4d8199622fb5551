"""Measures `gpucoord submit -d` from its start to its end; beside an earlier build, in one run.

    python -m tests.bench.bench_cli [FOLDER OF AN EARLIER BUILD]

Each build has a service of its own. Their submissions alternate.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.processes.service import ROOT, Service

SUBMISSIONS = 20
WARM_UP = 3


def submission_s(service: Service) -> float:
    env = service._env | {"GPUCOORD_URL": service.address}
    command = [sys.executable, "-m", "gpucoord_site", "submit", "-d", "--gpus", "0", "--", "true"]
    begun = time.perf_counter()
    subprocess.run(command, env=env, cwd=service.root, check=True, capture_output=True)
    return time.perf_counter() - begun


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
                [submission_s(service) for service in services]
                for _ in range(WARM_UP + SUBMISSIONS)
            ]
        finally:
            for service in services:
                service.stop()
    p50s = [statistics.median(column) for column in zip(*rounds[WARM_UP:], strict=True)]
    print(f"p50 of {SUBMISSIONS} submissions: {1000 * p50s[0]:.0f} ms")
    if len(p50s) > 1:
        print(f"earlier build: {1000 * p50s[1]:.0f} ms; ratio {p50s[0] / p50s[1]:.2f}")


if __name__ == "__main__":
    main()
