"""`python -m tests.service.on_postgres`: the tests that touch rows, on a PostgreSQL of their own.

Further words go to pytest. What fails is tried once more alone, as in `.ci/run`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from tests.service.postgres_cluster import cluster

QUICK = "not long and not processes and not browser and not slow and not hostile"
APPS = ("monitor", "reports", "scheduler", "service", "pages")
# The database goes with its server: nothing to tear down.
OPTIONS = ("-q", "-p", "tests.service.only_rows", "--reuse-db", "-m", QUICK)


def main(words: list[str]) -> int:
    paths = [] if any("tests/" in word for word in words) else [f"tests/{app}" for app in APPS]
    with cluster() as url, tempfile.TemporaryDirectory() as folder:

        def ran(*more: str) -> int:
            return subprocess.run(
                [sys.executable, "-m", "pytest", *OPTIONS, f"-ocache_dir={folder}", *paths, *more],
                env={**os.environ, "DATABASE_URL": url, "GPUCOORD_DATA": f"{folder}/data"},
            ).returncode

        code = ran(*words)
        return ran("--last-failed", "--last-failed-no-failures=none", "-n0") if code == 1 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
